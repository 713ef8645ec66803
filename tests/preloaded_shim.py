"""A command that a shell or `task-run dev` starts: `preloaded.py` forks it, this process waits.

    python -IS preloaded_shim.py COMMAND [OPTION…]

A start takes a hundredth of a second, because it imports nothing but parts of the interpreter.
Signals reach the command, which ends with this process, and its exit code is the one of this
process.
"""

import _signal
import _socket
import marshal
import os
import sys

_PASSED_ON = {_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM}

_signal.pthread_sigmask(_signal.SIG_BLOCK, _PASSED_ON)
held = [int(name) for name in os.listdir("/proc/self/fd")]
held = [file for file in held if file > 2 and os.path.exists(f"/proc/self/fd/{file}")]
status, told = os.pipe()
order = {"command": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd()}
order["held"] = held
files = b"".join(file.to_bytes(4, sys.byteorder) for file in (0, 1, 2, *held, told))
line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
line.connect("\0" + os.environ["PRELOADED_AT"])
line.sendmsg([marshal.dumps(order)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
line.close()
os.close(told)
with open(status, "rb", buffering=0) as answers:
    command = int(answers.readline())
    for number in _PASSED_ON:
        _signal.signal(number, lambda number, _: os.kill(command, number))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _PASSED_ON)
    code = int(answers.readline())
if code < 0:  # end by the same signal
    _signal.signal(-code, _signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
