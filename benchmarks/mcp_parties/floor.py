"""Record at the least cost: two blocking pipes, polled; each line appended to a file.

python floor.py FILE COMMAND...
"""

import os
import select
import subprocess
import sys

file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
    assert server.stdin is not None
    assert server.stdout is not None
    other_end = {0: server.stdin.fileno(), server.stdout.fileno(): 1}
    poll = select.poll()
    for each in other_end:
        poll.register(each, select.POLLIN)
    is_open = True
    while is_open:
        for number, _ in poll.poll():
            raw = os.read(number, 1 << 16)
            is_open = is_open and bool(raw)
            for line in raw.splitlines(keepends=True):
                os.write(file, line)
                os.write(other_end[number], line)
