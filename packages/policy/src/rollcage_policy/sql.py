"""Whether an SQL text only reads, as far as the text can tell.

sqlglot parses it in the dialect of the database, and every part has to be known as
read-only: an unlisted function, clause or kind of statement is refused. So are the database's own
tables, which hold its users, their passwords, other sessions and settings, except those that
describe the user's tables.
The text does not show the side effects of a view, an operator or a type of the database itself;
a connection that can't write (`rollcage_toolbox.Database`'s `query`) protects from these.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["DIALECTS", "load_parser", "sql_reads_only"]

DIALECTS: Final = frozenset({"mysql", "postgres", "sqlite"})

_MOST_TEXT: Final = 20_000
_MOST_NODES: Final = 5_000

# By the names of sqlglot's own classes: the parts of a reading statement ...
_STATEMENTS: Final = "Select Union Intersect Except Subquery"
_CLAUSES: Final = """
    Alias All And Any Between Boolean CTE Case Cast Collate Column DataType DataTypeParam
    Distinct Escape Exists Fetch Filter From Glob Group Having ILike Identifier If In Interval
    Is JSONExtract JSONExtractScalar JSONPath JSONPathKey JSONPathRoot JSONPathSubscript Join
    Like Limit Literal Named Not Null Offset Or Order Ordered Parameter Paren Placeholder
    SimilarTo Star Table TableAlias TryCast Tuple Values Var Where Window WindowSpec With
    WithinGroup Xor
"""
_OPERATORS: Final = """
    Add BitwiseAnd BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor DPipe Div
    EQ GT GTE IntDiv LT LTE Mod Mul NEQ Neg NullSafeEQ NullSafeNEQ Sub
"""
# ... and the functions that it may have.
_FUNCTIONS: Final = """
    Abs Array ArrayAgg Avg Ceil Coalesce Concat ConcatWs Count CountIf CurrentDate CurrentTime
    CurrentTimestamp Date DateAdd DateDiff DateSub DateTrunc Day DenseRank Extract FirstValue
    Floor Greatest GroupConcat Hex Initcap LPad LTrim Lag LastValue Lead Least Left Length Ln
    Lower Max Median Min Month NthValue Ntile Nullif Pad PercentRank PercentileCont
    PercentileDisc Pow RTrim Rank Replace Right Round RowNumber Sign SplitPart Sqrt Stddev
    StddevPop StddevSamp StrPosition StrToDate StringAgg Substring Sum TimeToStr TimeToUnix
    TimestampTrunc ToChar Trim Trunc TsOrDsToDate TsOrDsToTimestamp Unicode UnixToTime Upper
    Variance VariancePop Year
"""
_ROOTS: Final = frozenset(_STATEMENTS.split())
_KNOWN: Final = _ROOTS | frozenset(f"{_CLAUSES} {_OPERATORS} {_FUNCTIONS}".split())

# The names that a database keeps for itself, under which a new version may add more tables; and
# those of them that only describe the user's tables.
_KEPT: Final = {
    "mysql": re.compile(r"mysql|performance_schema|sys"),
    "postgres": re.compile(r"pg_.*"),
    "sqlite": re.compile(r"(?:sqlite|pragma)_.*|dbstat"),
}
_OF_TABLES: Final = """
    pg_attribute pg_catalog pg_class pg_constraint pg_description pg_enum pg_index pg_indexes
    pg_matviews pg_namespace pg_sequences pg_tables pg_type pg_views
    sqlite_master sqlite_schema sqlite_sequence sqlite_temp_master sqlite_temp_schema
"""
_DESCRIBING: Final = frozenset(_OF_TABLES.split())
_INFORMATION: Final = "information_schema"
_OF_INFORMATION: Final = """
    check_constraints columns constraint_column_usage constraint_table_usage domains
    key_column_usage referential_constraints schemata sequences statistics table_constraints tables
    views
"""
_DESCRIBING_INFORMATION: Final = frozenset(_OF_INFORMATION.split())

# Syntax that depends on a server's settings: escapes in texts, and Postgres' other quotes.
_BY_SETTING: Final = re.compile(r"\\|\$\w*\$|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def sql_reads_only(text: object, dialect: object) -> bool:
    """Return whether a text is one statement that only reads.

    `sql_reads_only(args.query, "postgres")`. Comments are refused, because databases differ in
    which comments they execute. So are the names of the database's own tables (`pg_shadow`,
    `mysql.user`), for a column or an alias too, except those that describe the user's tables. It
    needs `rollcage[sql]`.

    Args:
        text: the statement.
        dialect: one of `mysql`, `postgres` and `sqlite`.

    Raises:
        ValueError: the text can't be parsed, or is more than one statement.
    """
    if not isinstance(text, str) or not isinstance(dialect, str):
        raise ValueError("sql_reads_only takes two texts: a statement and its dialect")
    if dialect not in DIALECTS:
        raise ValueError(f"sql_reads_only knows the dialects {', '.join(sorted(DIALECTS))}")
    if len(text) > _MOST_TEXT:
        raise ValueError(f"sql_reads_only takes at most {_MOST_TEXT} characters")
    if _BY_SETTING.search(text):
        raise ValueError("backslashes, `$$` or control characters: servers differ in them")
    return _only_reads(_parsed(text, dialect), dialect)


def load_parser() -> None:
    """Load the parser with its dialects, so that no decision has to wait for it.

    Raises:
        ImportError: sqlglot is not installed.
    """
    import sqlglot

    for dialect in DIALECTS:
        sqlglot.parse("select 1", read=dialect)


def _parsed(text: str, dialect: str) -> Any:
    """Parse the one statement of a text; None if its kind does not read."""
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ImportError:
        raise ValueError("sql_reads_only needs sqlglot: pip install 'rollcage[sql]'") from None
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
        # Other statements are never parsed: sqlglot logs unknown ones, with their text.
        begins = next((t.text.upper() for t in tokens if t.text != "("), "")
        if begins not in {"SELECT", "WITH"}:
            return None
        if any(each.comments for each in tokens) or "/*" in _outside_of_texts(text, tokens):
            raise ValueError("a statement with comments")
        statements = sqlglot.parse(text, read=dialect)
    except (SqlglotError, RecursionError):
        raise ValueError(f"no statement of {dialect} that can be parsed") from None
    if len(statements) != 1 or statements[0] is None:
        raise ValueError("not one statement")
    return statements[0]


def _outside_of_texts(text: str, tokens: list[Any]) -> str:
    """Return the text between tokens: blanks, and comments that belong to no token."""
    between: list[str] = []
    end = 0
    for each in tokens:
        between.append(text[end : each.start])
        end = each.end + 1
    return "".join([*between, text[end:]])


def _only_reads(statement: Any, dialect: str) -> bool:
    if statement is None or type(statement).__name__ not in _ROOTS:
        return False
    for count, node in enumerate(statement.walk()):
        if count > _MOST_NODES:
            raise ValueError(f"a statement of more than {_MOST_NODES} parts")
        name = type(node).__name__
        if name not in _KNOWN:
            return False
        if name == "DataType" and node.this.name == "USERDEFINED":
            return False
        if name == "Identifier" and _is_kept(node, dialect):
            return False
    return True


def _is_kept(identifier: Any, dialect: str) -> bool:
    """Return whether a name may be of a table in which the database keeps more than structure.

    Any name counts, not only a table's: a parser may take a table for something else.
    """
    name = identifier.name.casefold()
    if name == _INFORMATION and dialect != "sqlite":
        table = identifier.parent
        is_table = type(table).__name__ == "Table"
        return not is_table or table.name.casefold() not in _DESCRIBING_INFORMATION
    return name not in _DESCRIBING and _KEPT[dialect].fullmatch(name) is not None
