"""Runs a program in a preloaded process, with the streams, environment and folder of this one.

    python preloaded_command.py FD ARGUMENT...

FD is the socket of `tests.preloader`, which `tests.preloaded.command` lets it inherit. It imports
nothing of the project, so that it starts at once.
"""

import json
import os
import socket
import sys


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    request = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    status, to = os.pipe()
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2, to])
    os.close(to)
    connection.recv(20)
    sys.exit(os.waitstatus_to_exitcode(int(os.read(status, 20))))


if __name__ == "__main__":
    main()
