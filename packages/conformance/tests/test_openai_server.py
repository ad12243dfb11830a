"""The scripted server, over plain HTTP, as any client of OpenAI's API meets it."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from rollcage_conformance.openai_server import Failure, OpenAIServer, Reply

HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"


def send(
    server: OpenAIServer,
    body: bytes | Mapping[str, Any] | None = None,
    *,
    method: str = "POST",
    path: str = CHAT,
    headers: Mapping[str, str] | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    """One request and the answer's whole body; IncompleteRead where that is cut."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, dict(headers or {}))
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def ask(server: OpenAIServer, **more: Any) -> tuple[int, Any]:
    response, data = send(server, {**HELLO, **more})
    return response.status, json.loads(data)


def message(server: OpenAIServer, **more: Any) -> dict[str, Any]:
    status, body = ask(server, **more)
    assert status == 200, body
    return dict(body["choices"][0]["message"])


def events(data: bytes) -> list[Any]:
    """The chunks of a stream that may be cut; the last of a whole one is the text [DONE]."""
    *texts, end = data.decode().split("\n\n")
    assert end == ""
    assert all(text.startswith("data: ") for text in texts)
    found = [text.removeprefix("data: ") for text in texts]
    return [text if text == "[DONE]" else json.loads(text) for text in found]


def stream(server: OpenAIServer, **more: Any) -> list[Any]:
    response, data = send(server, {**HELLO, "stream": True, **more})
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream"
    chunks = events(data)
    assert chunks.pop() == "[DONE]"
    return chunks


def deltas(chunks: list[Any]) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


# --- plain ---------------------------------------------------------------------------------------


def test_a_text() -> None:
    with OpenAIServer([Reply("all done", usage=(12, 3))]) as server:
        status, body = ask(server)
    assert status == 200
    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "all done", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }


def test_tool_calls_and_reasoning() -> None:
    reply = Reply(tool_calls=[("send", {"text": "é"}), ("look", {})], reasoning="well")
    with OpenAIServer([reply]) as server:
        _, body = ask(server)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "well",
        "tool_calls": [
            {
                "id": "call_1_0",
                "type": "function",
                "function": {"name": "send", "arguments": '{"text": "é"}'},
            },
            {"id": "call_1_1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    }


def test_a_text_beside_tool_calls_stays() -> None:
    with OpenAIServer([Reply("I look", tool_calls=[("look", {})])]) as server:
        assert message(server)["content"] == "I look"


@pytest.mark.parametrize("raw", ['{ "text":\t"a" }', '{"text":', "", "[]"])
def test_raw_arguments_come_as_they_are(raw: str) -> None:
    with OpenAIServer([Reply(tool_calls=[("send", raw)])] * 2) as server:
        assert message(server)["tool_calls"][0]["function"]["arguments"] == raw
        assert _assembled(stream(server))[0]["arguments"] == raw


def test_id_and_finish_reason_may_be_given() -> None:
    reply = Reply("cut sh", tool_calls=[("look", {})], id="mine", finish_reason="length")
    with OpenAIServer([reply, reply]) as server:
        _, body = ask(server)
        chunks = stream(server)
    assert body["id"] == "mine"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["message"]["tool_calls"][0]["id"] == "call_mine_0"
    assert {chunk["id"] for chunk in chunks} == {"mine"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_structured_output_is_the_text() -> None:
    with OpenAIServer([Reply('{"a": 1}')]) as server:
        assert message(server, response_format={"type": "json_object"})["content"] == '{"a": 1}'


# --- streams -------------------------------------------------------------------------------------


def test_a_text_streams_word_by_word_after_the_reasoning() -> None:
    with OpenAIServer([Reply(" all  done\n", reasoning="let me see")]) as server:
        chunks = stream(server)
    assert deltas(chunks) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "let "},
        {"reasoning_content": "me "},
        {"reasoning_content": "see"},
        {"content": " all  "},
        {"content": "done\n"},
        {},
    ]
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert finishes == [None] * 6 + ["stop"]
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["id"], chunk["model"]) == ("chatcmpl-1", "scripted")
        assert "usage" not in chunk


def test_usage_streams_last_where_it_is_asked_for() -> None:
    with OpenAIServer([Reply("done", usage=(7, 2))]) as server:
        *before, last = stream(server, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert [chunk["usage"] for chunk in before] == [None] * 3


def _assembled(chunks: list[Any]) -> dict[int, dict[str, str]]:
    """Tool calls put together as clients do it: by index, id and name once, arguments joined."""
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas(chunks):
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] not in calls
                calls[call["index"]] = {
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": "",
                }
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return calls


def test_parallel_tool_calls_stream_in_pieces_by_turns() -> None:
    calls = [("send", {"text": "a longer text"}), ("look", {"place": "b"}), ("send", {})]
    with OpenAIServer([Reply("on it", tool_calls=calls)]) as server:
        chunks = stream(server)
    assert _assembled(chunks) == {
        0: {"id": "call_1_0", "name": "send", "arguments": '{"text": "a longer text"}'},
        1: {"id": "call_1_1", "name": "look", "arguments": '{"place": "b"}'},
        2: {"id": "call_1_2", "name": "send", "arguments": "{}"},
    }
    order = [call["index"] for delta in deltas(chunks) for call in delta.get("tool_calls", ())]
    assert order == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 1]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_cut_stream_ends_after_half_of_its_chunks() -> None:
    server = OpenAIServer([Reply("a b c d e", cut=True)])
    with server, pytest.raises(http.client.IncompleteRead) as caught:
        send(server, {**HELLO, "stream": True})
    assert deltas(events(caught.value.partial))[1:] == [{"content": f"{c} "} for c in "abc"]


def test_a_cut_answer_ends_after_half_of_its_bytes() -> None:
    server = OpenAIServer([Reply("a b c d e", cut=True)])
    with server, pytest.raises(http.client.IncompleteRead) as caught:
        send(server, HELLO)
    assert abs(len(caught.value.partial) - (caught.value.expected or 0)) <= 1


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "kind"), [(429, "invalid_request"), (503, "server")])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_failure_tells_clients_not_to_retry(status: int, kind: str, *, streamed: bool) -> None:
    with OpenAIServer([Failure(status, "slow down")]) as server:
        response, data = send(server, {**HELLO, "stream": streamed})
    assert response.status == status
    assert response.headers["x-should-retry"] == "false"
    error = {"message": "slow down", "type": f"{kind}_error", "param": None, "code": None}
    assert json.loads(data) == {"error": error}


@pytest.mark.parametrize("status", [200, 399, 600])
def test_a_failure_has_a_failures_status(status: int) -> None:
    with pytest.raises(ValueError, match=f"from 400 to 599, not {status}"):
        Failure(status, "fine")


def test_arguments_that_are_no_json_are_refused_where_they_are_written() -> None:
    with pytest.raises(TypeError, match=r"the arguments of 'send' are no JSON object: .*set"):
        Reply(tool_calls=[("send", {"text": {1}})])


# --- the script ----------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_requests_which_are_kept() -> None:
    with OpenAIServer([Reply("one"), Failure(500, "two"), Reply("three")]) as server:
        assert message(server, user="a")["content"] == "one"
        assert ask(server)[0] == 500
        status, body = ask(server, user="c")
        assert (status, body["id"]) == (200, "chatcmpl-3")
        assert [request.get("user") for request in server.requests] == ["a", None, "c"]
    assert server.requests[1] == HELLO


def test_answers_left_over_are_no_error() -> None:
    with OpenAIServer([Reply("one"), Reply("two")]) as server:
        ask(server)


def test_more_than_the_script_has_is_an_error_here_and_there() -> None:
    said: list[str] = []
    with pytest.raises(AssertionError) as caught, OpenAIServer([Reply("one")]) as server:
        ask(server)
        for _ in range(2):
            status, body = ask(server)
            assert status == 500
            said.append(body["error"]["message"])
    assert str(caught.value) == "\n".join(said)
    assert re.search(r'of 1 answers has none for request 2, .*"hello"', said[0])
    assert "request 3" in said[1]


def test_a_long_last_message_is_shortened() -> None:
    long = [{"role": "user", "content": "x" * 9_999}]
    with pytest.raises(AssertionError, match=r"x…$"), OpenAIServer([]) as server:
        ask(server, messages=long)


def test_another_exception_on_its_way_is_not_hidden() -> None:
    with pytest.raises(KeyError, match="mine"), OpenAIServer([]) as server:
        assert ask(server)[0] == 500
        raise KeyError("mine")


def test_a_function_answers_by_what_is_asked_in_parallel() -> None:
    both = threading.Barrier(2, timeout=30)

    def answer(request: dict[str, Any]) -> Reply:
        both.wait()  # neither is answered before both have asked
        return Reply(f"to {request['user']}")

    said: dict[str, str] = {}

    def client(user: str) -> None:
        said[user] = message(server, user=user)["content"]

    with OpenAIServer(answer) as server:
        clients = [threading.Thread(target=client, args=(user,)) for user in "ab"]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
    assert said == {"a": "to a", "b": "to b"}


@pytest.mark.parametrize("given", ["oops", None])
def test_a_function_that_fails_is_an_error_here_and_there(given: str | None) -> None:
    def answer(request: dict[str, Any]) -> Any:
        if given:
            raise LookupError(given)

    said = r"LookupError\('oops'\)" if given else "None, not a Reply or Failure"
    match = rf"{said}.* request 1, whose last message is"
    with pytest.raises(AssertionError, match=match), OpenAIServer(answer) as server:
        assert ask(server)[0] == 500


def test_a_reply_that_cannot_be_written_is_an_error_where_the_context_is_left() -> None:
    odd: Any = object()
    answers = [Reply(id=odd)]
    failed = r"the server failed: TypeError.*serializable"
    dropped = pytest.raises(http.client.RemoteDisconnected)
    with pytest.raises(AssertionError, match=failed), OpenAIServer(answers) as server, dropped:
        ask(server)


# --- what it does not answer ---------------------------------------------------------------------

CALLED = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}, {"id": "y"}]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "seen"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        ([], "the body is no object"),
        ({**HELLO, "model": None}, "'model' is missing"),
        ({**HELLO, "n": 2}, "'n' is more than 1"),
        ({**HELLO, "n": [1]}, "'n' is more than 1"),
        ({**HELLO, "stream_options": 1}, "'stream_options' is no object"),
        ({"model": "scripted"}, "'messages' is missing"),
        ({**HELLO, "messages": {}}, "'messages' is missing, or no array"),
        ({**HELLO, "messages": []}, "'messages' is empty"),
        ({**HELLO, "messages": ["hello"]}, "messages[0] is no object"),
        ({**HELLO, "messages": [{"content": "hello"}]}, "messages[0] has no 'role'"),
        ({**HELLO, "messages": [{**CALLED, "tool_calls": 1}]}, "messages[0].tool_calls is missing"),
        ({**HELLO, "messages": [{**CALLED, "tool_calls": [1]}]}, "messages[0].tool_calls[] is no"),
        (
            {**HELLO, "messages": [RESULT]},
            "messages[0] is the result of 'x', which is no open call",
        ),
        ({**HELLO, "messages": [CALLED, RESULT]}, "end before the results of the calls ['y']"),
        (
            {**HELLO, "messages": [CALLED, RESULT, {"role": "user", "content": "go on"}]},
            "messages[2] comes before the results of the calls ['y']",
        ),
    ],
)
def test_a_malformed_request_takes_no_answer(body: Any, said: str) -> None:
    with OpenAIServer([Reply("fine")]) as server:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        response, answer = send(server, data)
        assert response.status == 400
        assert said in json.loads(answer)["error"]["message"]
        assert server.requests == ()
        assert message(server)["content"] == "fine"


def test_a_conversation_with_all_results_is_answered() -> None:
    messages = [*HELLO["messages"], CALLED, {**RESULT, "tool_call_id": "y"}, RESULT]
    with OpenAIServer([Reply("fine")]) as server:
        assert message(server, messages=messages)["content"] == "fine"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/responses", 404),
        ("POST", "/v1/models", 404),
        ("GET", CHAT, 404),
        ("GET", "/", 404),
        ("PUT", CHAT, 501),
    ],
)
def test_what_is_unknown_is_a_json_error(method: str, path: str, status: int) -> None:
    with OpenAIServer([]) as server:
        response, data = send(server, HELLO, method=method, path=path)
    assert response.status == status
    assert method in json.loads(data)["error"]["message"]


def test_a_request_without_its_length_is_a_json_error() -> None:
    with OpenAIServer([]) as server:
        response, data = send(server, None, headers={"Content-Length": "many"})
    assert response.status == 411
    assert "Content-Length" in json.loads(data)["error"]["message"]


def test_models_are_listed() -> None:
    with OpenAIServer([]) as server:
        response, data = send(server, method="GET", path="/v1/models?limit=1")
    assert response.status == 200
    assert [model["id"] for model in json.loads(data)["data"]] == ["scripted"]


# --- its life ------------------------------------------------------------------------------------


def test_it_is_on_loopback_and_refuses_once_stopped() -> None:
    with OpenAIServer([Reply("one"), Reply("two")]) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.url.endswith("/v1")
        ask(server)
        server.stop()
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            ask(server)
    with pytest.raises(ConnectionRefusedError):
        ask(server)
    assert len(server.requests) == 1


def test_it_leaves_no_thread_not_even_for_a_client_that_says_nothing() -> None:
    before = set(threading.enumerate())
    with OpenAIServer([Reply("one")]) as server, socket.socket() as silent:
        silent.connect(("127.0.0.1", urlsplit(server.url).port))
        ask(server)  # connections are accepted in their order: the silent one is
        server.stop()
        assert set(threading.enumerate()) == before
        assert silent.recv(1) == b""


def test_stopping_lets_answers_under_way_finish() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer(request: dict[str, Any]) -> Reply:
        asked.set()
        assert go_on.wait(30)
        return Reply("late")

    said: list[str] = []
    with OpenAIServer(answer) as server:
        client = threading.Thread(target=lambda: said.append(message(server)["content"]))
        client.start()
        assert asked.wait(30)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        go_on.set()
        stopping.join()
    client.join()
    assert said == ["late"]


def test_an_answer_may_stop_its_server() -> None:
    def answer(request: dict[str, Any]) -> Reply:
        server.stop()
        return Reply("the last")

    with OpenAIServer(answer) as server:
        assert message(server)["content"] == "the last"
        with pytest.raises(ConnectionRefusedError):
            ask(server)


def test_a_client_that_leaves_in_a_stream_is_no_error() -> None:
    left = threading.Event()

    def answer(request: dict[str, Any]) -> Reply:
        assert left.wait(30)
        return Reply("word " * 2_000)

    with OpenAIServer(answer) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        connection.request("POST", CHAT, json.dumps({**HELLO, "stream": True}))
        connection.close()
        left.set()


def test_it_has_a_url_once_it_serves_and_serves_once() -> None:
    server = OpenAIServer([])
    with pytest.raises(RuntimeError, match="no url before its context is entered"):
        _ = server.url
    with server:
        pass
    with pytest.raises(RuntimeError, match="serves once"):
        server.__enter__()


def test_servers_do_not_meet() -> None:
    with OpenAIServer([Reply("a")]) as one, OpenAIServer([Reply("b")]) as other:
        assert [message(each)["content"] for each in (other, one)] == ["b", "a"]
    assert all(len(each.requests) == 1 for each in (one, other))
