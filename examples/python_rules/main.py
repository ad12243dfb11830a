"""Rules in Python: one denies, one raises, one asks; what a model reads of it."""

import json
import tempfile

from rollcage import ApprovalRequired, Blocked, Session, StepView, Verdict, open_store, tool

paid: list[int] = []


@tool(effect="write", risk="high")
def pay(account: str, cents: int) -> str:
    """Send money."""
    paid.append(cents)
    return f"sent {cents} cents to {account}"


@tool(effect="read")
def balance(account: str) -> int:
    """Read a balance, in cents."""
    return 125_00 if account == "ours" else 0


def small_sums(step: StepView) -> Verdict | None:
    """Deny what is above 100 euros."""
    if step.name == "pay" and step.args["cents"] > 100_00:
        return Verdict.deny("payments end at 10000 cents; ask a person", code="too_much")
    return None


def known_accounts(step: StepView) -> Verdict | None:
    """Ask before paying anybody whose balance is unknown; this rule has a bug."""
    if step.name == "pay" and {"ann": 1, "bob": 2}[step.args["account"]] == 2:
        return Verdict.ask("bob is paid by hand")
    return None


def refused(account: str, cents: int) -> Blocked:
    """Try to pay, and show what a model would read."""
    try:
        pay(account, cents)
    except Blocked as error:
        print(f"pay({account!r}, {cents}): {error}  [{error.verdict_code}, rule {error.rule}]")
        return error
    raise AssertionError("the payment went through")


def main() -> None:
    """One allowed call, two denied ones, one that nobody can approve."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session("payments", store=folder, gate=[small_sums, known_accounts])
        try:
            with session:
                print("balance:", balance("ours"))
                print("allowed:", pay("ann", 50_00))
                assert refused("ann", 500_00).verdict_code == "too_much"
                assert refused("eve", 1_00).verdict_code == "rule_error"  # eve is not listed
                pay("bob", 1_00)
        except ApprovalRequired as error:
            print("halted:", error)
        assert paid == [50_00]
        lines = [json.loads(line) for line in open_store(folder).read(session.run_id)]
        blocked = [line for line in lines if line["event"] == "refused"]
        print("in the log:", [line["verdict"]["code"] for line in blocked])
        assert [line["name"] for line in blocked] == ["pay", "pay"]


if __name__ == "__main__":
    main()
