"""Attempts to get out of a host's sandbox, as replies that `guest.Intruder` runs. One that succeeds prints GOT, or the test's secret.

In each, HOST is the service's process, NATS, POSTGRES and METRICS are ports of this machine's loopback, PLACE is a folder of the service
that every user may read and write, and SECRET_NAME is the name of an abstract socket.
"""

TO_LOOPBACK = "import socket\nsocket.create_connection(('127.0.0.1', {}), 5)\nprint('GOT')"
CALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    return libc.syscall(x86 if platform.machine() == 'x86_64' else arm, *arguments)
"""

NETWORK = {
    "NATS on loopback": TO_LOOPBACK.format("NATS"),
    "PostgreSQL on loopback": TO_LOOPBACK.format("POSTGRES"),
    "a service's monitoring port": TO_LOOPBACK.format("METRICS"),
    "loopback by IPv6": "import socket\nsocket.create_connection(('::1', NATS), 5)\nprint('GOT')",
    "a way out": "import socket\none = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\none.connect(('192.0.2.1', 53))\nprint('GOT')",
    "a name": "import socket\nsocket.getaddrinfo('pypi.org', 443)\nprint('GOT')",
    "an abstract unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0SECRET_NAME')\nprint('GOT')",
    "a unix socket in a folder": "import socket\nsocket.socket(socket.AF_UNIX).connect('PLACE/socket')\nprint('GOT')",
    "all that the machine hears": "import socket\nsocket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768)\nprint('GOT')",
}
FILES = {
    "a file of the service": "print(open('PLACE/secret').read())",
    "a file in the machine's /tmp": "import glob\nfor one in glob.glob('/tmp/*secret*'):\n    print(open(one).read())",
    "a key in the service's HOME": "print(open('PLACE/home/.creds').read())",
    "what lies beside the code": "import env_svc, os\nabove = os.path.dirname(env_svc.__path__[0])\nprint(open(above + '/pyproject.toml').read()); print('GOT')",
    "the machine's users": "print(open('/etc/passwd').read()); print('GOT')",
    "the root of another process": "for one in ('HOST', '1', 'self'):\n    try:\n        print(open(f'/proc/{one}/root/PLACE/secret').read())\n    except OSError:\n        pass",
    "a folder of the service, by its process": "import os\nprint(os.listdir('/proc/HOST/cwd')); print('GOT')",
    "through a link": "import os\nos.symlink('PLACE/secret', '/tmp/link')\nprint(open('/tmp/link').read())",
    "a later start's code": "import tabulate\nopen(tabulate.__file__, 'a').write('\\n')\nprint('GOT')",
    "marlaas's code": "import common\nopen(common.__file__, 'a').write('\\n')\nprint('GOT')",
    "a file for others": "open('PLACE/left', 'w').write('x')\nprint('GOT')",
    "a folder of the system": "for one in ('/usr/lib/x', '/x', '/etc/x', '/dev/x', '/root/x'):\n    try:\n        open(one, 'w').write('x')\n        print('GOT')\n    except OSError:\n        pass",
    "the disk": "import os, stat\nos.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(254, 0))\nopen('/tmp/disk', 'rb').read(1)\nprint('GOT')",
    "a mount": CALL + "print('GOT' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else '')",
    "the root made writable": CALL + "print('GOT' if libc.mount(None, b'/', None, 0x1020, None) == 0 else '')",
    "privileges in a user namespace": CALL + "print('GOT' if libc.unshare(0x10000000) == 0 else '')",
    "another root": "import os\nos.chroot('/tmp')\nprint('GOT')",
    "control groups": "import glob\nfor one in glob.glob('/sys/fs/cgroup/**/cgroup.procs', recursive=True):\n    open(one, 'w').write('0')\n    print('GOT')",
}
PROCESSES = {
    "the service's variables": "for one in ('HOST', '1', 'self', 'thread-self'):\n    try:\n        print(open(f'/proc/{one}/environ').read())\n    except OSError:\n        pass",
    "its own variables": "import os\nprint(dict(os.environ))",
    "the command lines of others": "import glob\nfor one in glob.glob('/proc/[0-9]*/cmdline'):\n    print('GOT' if b'nats' in open(one, 'rb').read() else '')",
    "descriptors of the service": "import os\nfor one in range(3, 1024):\n    try:\n        print(os.pread(one, 100, 0))\n    except OSError:\n        pass",
    "a signal to the service": "import os\nos.kill(HOST, 0)\nprint('GOT')",
    "a signal to all": "import os\nfor one in (-1, os.getppid()):\n    try:\n        os.kill(one, 10)\n    except OSError:\n        pass",
    "tracing the service": CALL + "print('GOT' if libc.ptrace(16, HOST, 0, 0) == 0 else '')",
    "the service's memory": "print(open('/proc/HOST/mem', 'rb').read(1)); print('GOT')",
    "limits of the service": "import resource\nresource.prlimit(HOST, resource.RLIMIT_NOFILE)\nprint('GOT')",
    "limits of its own": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**45, 2**45))\nprint('GOT')",
    "another user": "import os\nfor one in (0, 65534):\n    try:\n        os.setuid(one)\n        print('GOT')\n    except OSError:\n        pass",
    "shared memory of the machine": CALL + "print('GOT' if call(29, 194, SHARED_KEY, 0, 0) >= 0 else '')",
    "shared memory by name": "print(open('/dev/shm/SECRET_NAME').read())",
    "keys of the kernel": CALL + "print('GOT' if call(250, 219, 0, -3, 0, 0, 0) >= 0 else '')",
    "a ring of the kernel": CALL + "print('GOT' if call(425, 425, 1, ctypes.create_string_buffer(120)) >= 0 else '')",
    "a program in the kernel": CALL + "print('GOT' if call(321, 280, 0, ctypes.create_string_buffer(72), 72) >= 0 else '')",
    "the service's terminal": "open('/dev/tty', 'w').write('x')\nprint('GOT')",
    "a better priority": "import os\nos.nice(-5)\nprint('GOT')",
}
BOMBS = {
    "processes": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "threads": "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(600,)).start()",
    "memory": "kept = []\nwhile True:\n    kept.append(bytearray(50_000_000))",
    "memory of many processes": (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        kept = bytearray(200_000_000)\n        time.sleep(600)\ntime.sleep(600)"
    ),
    "disk": "import itertools\nfor one in itertools.count():\n    open(f'/tmp/{one}', 'wb').write(bytes(10**6))",
    "files in memory": "import itertools\nfor one in itertools.count():\n    open(f'/dev/shm/{one}', 'wb').write(bytes(10**6))",
    "an archive": (
        "import io, tarfile\npacked = io.BytesIO()\nwith tarfile.open(fileobj=packed, mode='w:gz') as archive:\n"
        "    entry = tarfile.TarInfo('zeros')\n    entry.size = 400_000_000\n    archive.addfile(entry, open('/dev/zero', 'rb'))\n"
        "packed.seek(0)\ntarfile.open(fileobj=packed).extractall('/tmp/unpacked')\nprint('GOT')"
    ),
    "computing without end": "import signal\nfor one in (1, 2, 15, 24):\n    signal.signal(one, signal.SIG_IGN)\nwhile True:\n    pass",
    "sleeping without end": "import time\ntime.sleep(10_000)",
    "children that stay": "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(10_000)\nos._exit(0)",
    "prints": "import os\nwhile True:\n    os.write(2, b'x' * 65536)",
    "answers to no call": (
        "import os, msgpack\nframe = msgpack.packb({'id': 10**6, 'outcome': {'kind': 'Scored', 'value': {'reward': 1.0, 'components': {}}}})\n"
        "for one in range(3, 64):\n    try:\n        os.write(one, len(frame).to_bytes(4, 'big') + frame)\n    except OSError:\n        pass\n"
    ),
    "an answer without end": (
        "import os\nfor one in range(3, 64):\n    try:\n        os.write(one, b'\\xff' * 4)\n    except OSError:\n        pass\n"
    ),
}
