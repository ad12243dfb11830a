"""SQL that does more than read, shell lines that are more than one command."""

from __future__ import annotations

from collections.abc import Iterator

from tests.hostile.case import Case, Category, Place, rule

POSTGRES = [
    "SELECT * FROM pg_shadow", "SELECT passwd FROM pg_catalog.pg_authid",
    "SELECT * FROM ONLY pg_user",
    "SELECT * FROM information_schema.enabled_roles", "SELECT query FROM pg_stat_activity",
    "DELETE FROM users", "DROP TABLE users", "UPDATE users SET admin = true", "TRUNCATE users",
    "INSERT INTO users VALUES (1)", "SELECT 1; DROP TABLE users", "SELECT 1;;DELETE FROM users",
    "SELECT * INTO copied FROM users", "SELECT * FROM users FOR UPDATE", "TABLE users",
    "WITH gone AS (DELETE FROM users RETURNING *) SELECT * FROM gone",
    "WITH a AS (UPDATE users SET x = 1 RETURNING *) SELECT 1", "EXPLAIN ANALYZE DELETE FROM users",
    "COPY users TO PROGRAM 'sh'", "COPY (SELECT 1) TO '/tmp/x'",
    "DO $$ BEGIN DELETE FROM x; END $$",
    "SELECT pg_read_file('/etc/passwd')", "SELECT pg_sleep(60)", "SELECT pg_terminate_backend(1)",
    "SELECT lo_import('/etc/passwd')", "SELECT dblink('host=evil', 'DELETE FROM x')",
    "SELECT set_config('role', 'admin', false)", "SELECT nextval('ids')", "SELECT setval('ids', 1)",
    "SELECT query_to_xml('DELETE FROM x', true, true, '')", "SELECT * FROM pg_ls_dir('/')",
    "SET ROLE admin", "CALL wipe()", "VACUUM users", "GRANT ALL ON users TO x", "LOCK users",
    "SELECT 1 /* ", "SELECT 1 -- ; DROP TABLE users", "SELECT '\\'; DROP TABLE users; --'",
    "SELECT $a$ x $a$; DROP TABLE users", "SELECT E'\\'' || wipe()", "SEL/**/ECT wipe()",
    "SELECT 'x'::evil_type", "SELECT U&'\\0027'", "", " ", ";", "(" * 3000 + "SELECT 1",
    "SELECT 1" + " UNION SELECT 1" * 2000, "\0SELECT 1", "SELECT 1\0; DROP TABLE users",
    "SELECT\u200b1", "\uff33\uff25LECT wipe()", 'SELECT "wipe"()', "SELECT public.wipe()",
    "EXECUTE plan",
    "LISTEN x", "REFRESH MATERIALIZED VIEW x", "CREATE TABLE x AS SELECT 1",
    "MERGE INTO x USING y ON true WHEN MATCHED THEN DELETE",
]  # fmt: skip
MYSQL = [
    "SELECT * FROM mysql.user", "SELECT * FROM performance_schema.accounts",
    "SELECT 1 INTO OUTFILE '/tmp/x'", "SELECT load_file('/etc/passwd')", "SELECT sleep(60)",
    "SELECT benchmark(1000000, 1)", "SELECT /*!50000 1 INTO OUTFILE '/tmp/x' */ 1",
    "SELECT 1 --1 INTO OUTFILE '/tmp/x'", "SELECT @a := 1", "SELECT get_lock('x', 60)",
    "HANDLER x OPEN",
    'SELECT "\\" ; DROP TABLE users; -- "', "SELECT 1 # \n; DROP TABLE users",
    "LOAD DATA INFILE 'x'",
    "SELECT 1 FOR SHARE", "REPLACE INTO x VALUES (1)", "SHOW TABLES",
]  # fmt: skip
READS = [
    "SELECT 1", "select * from users where name = 'O''Brien'", "SELECT 1;", "(SELECT 1)",
    "SELECT name FROM users WHERE note = '; DROP TABLE users'", 'SELECT "delete" FROM "drop"',
    "SELECT u.id, count(*) FROM u LEFT JOIN o ON o.user_id = u.id GROUP BY u.id",
    "SELECT a FROM t GROUP BY a HAVING count(*) > 3 ORDER BY 1 DESC LIMIT 10 OFFSET 5",
    "WITH recent AS (SELECT * FROM orders WHERE day > current_date) SELECT sum(total) FROM recent",
    "SELECT 1 UNION ALL SELECT 2 EXCEPT SELECT 3", "SELECT * FROM t WHERE id IN (SELECT id FROM u)",
    "SELECT coalesce(a, 'x'), lower(b), substring(c, 1, 3), d::text FROM t",
    "SELECT row_number() OVER (PARTITION BY a ORDER BY b) FROM t", "SELECT DISTINCT a FROM t",
    "SELECT CASE WHEN a > 1 THEN 'update' ELSE 'insert' END FROM t",
    "SELECT * FROM (VALUES (1, 2)) AS v (a, b)", "SELECT a -> 'b' ->> 'c' FROM t WHERE x = $1",
    "SELECT date_trunc('month', day), avg(price) FROM orders GROUP BY 1",
    "SELECT * FROM a JOIN b USING (id) WHERE EXISTS (SELECT 1 FROM c WHERE c.id = a.id)",
    "SELECT a FROM t WHERE b LIKE 'x%' AND NOT c IS NULL AND d BETWEEN 1 AND 2",
    "SELECT 'größer' AS \"Vergleich\"",
]  # fmt: skip

LINES = [
    "ls; rm -rf /", "ls && rm -rf /", "ls || rm -rf /", "ls & rm -rf /", "ls | sh", "ls > /etc/x",
    "ls >> x", "ls < /etc/passwd", "ls 2>&1", "ls $(rm x)", "ls `rm x`", "ls ${HOME}", "ls $HOME",
    'ls "$(rm x)"', 'ls "`rm x`"', 'ls "$HOME"', "ls <(rm x)", "ls\nrm -rf /", "ls\r\nrm x",
    "ls \\\nrm", "ls\\;rm", "rm -rf /", "RM x", "/bin/rm x", "./ls", "l\\s", "'rm' x", "r''m x",
    "ls *", "ls ?", "ls [a-z]", "ls {a,b}", "ls ~", "ls ~root", "ls #x", "!ls", "ls !!", "(ls)",
    "{ ls; }", "PATH=/tmp ls", "LD_PRELOAD=x ls", "env ls", "sudo ls", "sh -c ls", "eval ls",
    "exec ls", "xargs ls", "time ls", "=ls", "''", "'ls", 'ls "', "", " ", "\t", "ls\0",
    "ls\x1b[2J", "l\u200bs", "l\u0455", "\uff4c\uff53", "ls\u00a0-la", "ls\u2028rm x", "ls\u2003x",
    "ls " + "x " * 5000, "cat /etc/passwd; ls", "ls;", ";ls", "&& ls", "ls -la;rm x", "%rm",
]  # fmt: skip
SIMPLE = [
    "ls", "ls -la", "ls --color=never src", "cat notes.txt", "cat 'my notes.txt'",
    "grep -n TODO a.py",
    'grep "a b" notes.txt', "grep 'rm -rf /; $(x) `y` | z > w' notes.txt", "wc -l src/app.py",
    "  ls   -l  ", "cat résumé.md", "cat 日本.txt",
    "grep -e a@b.example mail.txt", "ls a,b a+b a:b",
    "grep '' x", "cat ./-odd", "grep \"it's\" x", "ls 50%",
]  # fmt: skip


def commands(place: Place) -> Iterator[Category]:
    postgres = rule("query", 'sql_reads_only(args.statement, "postgres")')
    mysql = rule("query", 'sql_reads_only(args.statement, "mysql")')
    shell = rule("shell", 'command(args.command)[0] in ["ls", "cat", "grep", "wc"]')
    yield Category("sql: postgres", _queries(POSTGRES), _queries(READS), postgres)
    yield Category("sql: mysql", _queries(MYSQL), _queries(READS[:4]), mysql)
    yield Category("shell", _lines(LINES), _lines(SIMPLE), shell)


def _queries(statements: list[str]) -> list[Case]:
    return [Case("query", {"statement": each}) for each in statements]


def _lines(lines: list[str]) -> list[Case]:
    return [Case("shell", {"command": each}) for each in lines]
