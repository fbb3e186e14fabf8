"""Confinement by the kernel alone, as source that an interpreter runs before a policy's code.

The project is not importable there, so these are texts: functions over ctypes, and statements that call them. Two kinds:

namespaces   a user (unless root), mount, network, pid, ipc and uts namespace of its own, with a root that holds the interpreter, its
             libraries and an empty /tmp; no capabilities; a seccomp filter over calls that reach the kernel's less used parts
landlock     for machines without namespaces, such as containers: Landlock over files, TCP, signals and abstract sockets, and a seccomp
             filter that also forbids sockets, other programs, and processes that leave their group

Sources: landlock(7), seccomp(2), pivot_root(2), mount_setattr(2), and the kernel's tables of system calls.
"""

from typing import Literal

Kind = Literal["namespaces", "landlock"]
NOT_OFFERED = 38
"""ENOSYS, the error number of system calls that the kind `landlock` forbids; no other call returns it."""

PUBLIC = ("/etc/mime.types", "/etc/localtime", "/usr/share/zoneinfo")
"""Files that the standard library reads if present; they reveal nothing of the machine."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

_KERNEL = r"""
import ctypes, errno, os, platform, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
ARCH, COLUMN = {'x86_64': (0xC000003E, 0), 'aarch64': (0xC00000B7, 1)}[platform.machine()]
def check(result, what):
    if result < 0:
        raise OSError(ctypes.get_errno(), what + ': ' + os.strerror(ctypes.get_errno()))
    return result
def call(number, what, *arguments):
    return check(libc.syscall(number, *arguments), what)
def prctl(option, value, what):
    check(libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)), what)

# Every call by its numbers on x86_64 and aarch64; None where that machine has no such call.
KERNEL_CALLS = {
    'ptrace': (101, 117), 'process_vm_readv': (310, 270), 'process_vm_writev': (311, 271), 'pidfd_getfd': (438, 438),
    'mount': (165, 40), 'umount2': (166, 39), 'pivot_root': (155, 41), 'chroot': (161, 51), 'mount_setattr': (442, 442),
    'open_tree': (428, 428), 'move_mount': (429, 429), 'fsopen': (430, 430), 'fsconfig': (431, 431), 'fsmount': (432, 432),
    'unshare': (272, 97), 'setns': (308, 268), 'bpf': (321, 280), 'keyctl': (250, 219), 'add_key': (248, 217), 'request_key': (249, 218),
    'perf_event_open': (298, 241), 'userfaultfd': (323, 282), 'open_by_handle_at': (304, 265), 'name_to_handle_at': (303, 264),
    'io_uring_setup': (425, 425), 'io_uring_enter': (426, 426), 'io_uring_register': (427, 427), 'kexec_load': (246, 104),
    'init_module': (175, 105), 'finit_module': (313, 273), 'delete_module': (176, 106), 'fanotify_init': (300, 262), 'acct': (163, 89),
    'swapon': (167, 224), 'swapoff': (168, 225), 'reboot': (169, 142), 'syslog': (103, 116), 'mknodat': (259, 33), 'mknod': (133, None),
    'personality': (135, 92), 'sethostname': (170, 161), 'setdomainname': (171, 162), 'settimeofday': (164, 170), 'quotactl': (179, 60),
}
OUTSIDE_CALLS = {
    'socket': (41, 198), 'connect': (42, 203), 'bind': (49, 200), 'execve': (59, 221), 'execveat': (322, 281), 'setsid': (112, 157),
    'setpgid': (109, 154), 'shmget': (29, 194), 'semget': (64, 190), 'msgget': (68, 186), 'mq_open': (240, 180), 'pidfd_open': (434, 434),
    'pidfd_send_signal': (424, 424), 'rt_sigqueueinfo': (129, 138), 'rt_tgsigqueueinfo': (297, 240), 'setpriority': (141, 140),
    'sched_setaffinity': (203, 122), 'sched_setscheduler': (144, 119), 'sched_setattr': (314, 274), 'ioprio_set': (251, 30),
}
CLONE, CLONE3, PRLIMIT = (56, 220), (435, 435), (302, 261)
KILL, TGKILL, TKILL = (62, 129), (234, 131), (200, 130)
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW flag of clone(2)

def keep_capabilities(kept):
    for capability in range(64):
        if libc.prctl(24, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break
    header, value = struct.pack('Ii', 0x20080522, 0), struct.pack('IIIIII', kept, kept, 0, 0, 0, 0)
    call((126, 91)[COLUMN], 'capset', header, value)

def filtered(outside, own_signals_only):
    # Classic BPF over struct seccomp_data: the call's number at 0, its machine at 4, its arguments from 16 on.
    load, equal, any_bit, end = 0x20, 0x15, 0x45, 0x06
    allow, kill = 0x7FFF0000, 0x80000000
    refuse = lambda code: (end, 0, 0, 0x00050000 | code)
    program = [(load, 0, 0, 4), (equal, 1, 0, ARCH), (end, 0, 0, kill), (load, 0, 0, 0)]
    if COLUMN == 0:
        program += [(0x35, 0, 1, 0x40000000), (end, 0, 0, kill)]  # numbers of x32
    def add(numbers, code):
        if numbers[COLUMN] is not None:
            program.extend([(equal, 0, 1, numbers[COLUMN]), refuse(code)])
    def add_unless(numbers, position, value, code):
        # Refuses the call unless the low and the high half of an argument are those of `value`.
        at = 16 + 8 * position
        program.extend([(equal, 0, 6, numbers[COLUMN]), (load, 0, 0, at), (equal, 0, 2, value & 0xFFFFFFFF)])
        program.extend([(load, 0, 0, at + 4), (equal, 1, 0, value >> 32), refuse(code), (load, 0, 0, 0)])
    for numbers in KERNEL_CALLS.values():
        add(numbers, errno.EPERM)
    add(CLONE3, errno.ENOSYS)  # its flags are out of a filter's sight; the C library then uses clone
    program.extend([(equal, 0, 4, CLONE[COLUMN]), (load, 0, 0, 16), (any_bit, 0, 1, NEW_NAMESPACES), refuse(errno.EPERM), (load, 0, 0, 0)])
    if outside:
        for numbers in OUTSIDE_CALLS.values():
            add(numbers, errno.ENOSYS)
        add_unless(PRLIMIT, 0, 0, errno.EPERM)
    if own_signals_only:
        add(TKILL, errno.EPERM)
        for numbers in (KILL, TGKILL):
            add_unless(numbers, 0, os.getpid(), errno.EPERM)
    program.append((end, 0, 0, allow))
    code = b''.join(struct.pack('HBBI', *one) for one in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    class Program(ctypes.Structure):
        _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
    prctl(38, 1, 'no_new_privs')
    check(libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(Program(len(program), ctypes.addressof(buffer))), 0, 0), 'seccomp')
"""

_NAMESPACES = r"""
def mount(source, target, kind, flags=0, data=None):
    encoded = [one if one is None else os.fsencode(one) for one in (source, target, kind, data)]
    check(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), 'mount ' + target)
def mount_attributes(target, attributes, recursive):
    value = struct.pack('QQQQ', attributes, 0, 0, 0)
    call(442, 'mount_setattr ' + target, -100, os.fsencode(target), 0x8000 if recursive else 0, value, len(value))
def enter_namespaces(visible, devices, scratch_bytes, shared_bytes):
    user, group = os.getuid(), os.getgid()
    flags = 0x20000 | 0x40000000 | 0x20000000 | 0x08000000 | 0x04000000  # mount, network, pid, ipc, uts
    check(libc.unshare(flags | (0x10000000 if user else 0)), 'unshare')
    if user:
        for name, text in (('setgroups', 'deny'), ('uid_map', f'65534 {user} 1'), ('gid_map', f'65534 {group} 1')):
            with open('/proc/self/' + name, 'w') as file:
                file.write(text)
    libc.sethostname(b'sandbox', 7)
    parent = os.getpid()
    child = os.fork()  # the first process of the new pid namespace: with it everything in there ends
    if child:
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    prctl(1, signal.SIGKILL, 'parent death signal')
    mount('none', '/', None, 0x44000)  # private, recursively: nothing of this is seen outside
    mount('root', '/tmp', 'tmpfs', 0x6, 'mode=0755,size=1m')
    for path in visible:
        if os.path.isdir(path):
            os.makedirs('/tmp' + path, exist_ok=True)
            if not os.path.samefile(path, '/tmp' + path):
                mount(path, '/tmp' + path, None, 0x5000)
                mount_attributes('/tmp' + path, 0x1 | 0x2 | 0x4, True)  # read-only, no set-user-id, no devices
        elif os.path.exists(path):
            os.makedirs(os.path.dirname('/tmp' + path), exist_ok=True)
            open('/tmp' + path, 'w').close()
            mount(path, '/tmp' + path, None, 0x1000)
            mount_attributes('/tmp' + path, 0x1 | 0x2 | 0x4, False)
    os.makedirs('/tmp/dev/shm')
    for path in devices:
        open('/tmp' + path, 'w').close()
        mount(path, '/tmp' + path, None, 0x1000)
    os.mkdir('/tmp/tmp'); os.mkdir('/tmp/proc')
    mount('tmp', '/tmp/tmp', 'tmpfs', 0x6, f'mode=1777,size={scratch_bytes}')
    mount('shm', '/tmp/dev/shm', 'tmpfs', 0xE, f'mode=1777,size={shared_bytes}')
    try:
        mount('proc', '/tmp/proc', 'proc', 0xE)
    except OSError:
        pass  # in a container whose own /proc is partly hidden the kernel refuses a whole one; few programs need it
    os.chdir('/tmp')
    call((155, 41)[COLUMN], 'pivot_root', b'.', b'.')
    check(libc.umount2(b'.', 2), 'umount')
    mount_attributes('/', 0x1 | 0x2, False)
    os.chdir('/tmp')
"""

_LANDLOCK = r"""
def needed_to_read(paths):
    # Of root, for an interpreter below a folder that is root's alone: what may be read is Landlock's to say.
    above = {folder for path in paths for folder in above_of(path)}
    hidden = os.geteuid() == 0 and any(not os.stat(folder).st_mode & 1 for folder in above)
    if hidden:
        prctl(8, 1, 'keep capabilities')
    return 1 << 2 if hidden else 0  # CAP_DAC_READ_SEARCH
def above_of(path):
    while path != '/':
        path = os.path.dirname(path)
        yield path
def landlock_version():
    return libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
def restrict_files(readable, writable):
    version = check(landlock_version(), 'landlock')
    everything = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    read, file_access = 0x4 | 0x8, 0x1 | 0x2 | 0x4 | (0x4000 if version >= 3 else 0)
    fields = [everything] + ([0x3] if version >= 4 else []) + ([0x3] if version >= 6 else [])
    ruleset = struct.pack('Q' * len(fields), *fields)
    descriptor = call(444, 'landlock_create_ruleset', ruleset, ctypes.c_size_t(len(ruleset)), ctypes.c_uint32(0))
    def allow(path, access):
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        access = access if os.path.isdir(path) else access & file_access
        call(445, 'landlock_add_rule', descriptor, ctypes.c_int(1), struct.pack('=Qi', access, opened), ctypes.c_uint32(0))
        os.close(opened)
    for path in readable:
        allow(path, read)
    for path in writable:
        allow(path, everything & ~0x1)
    prctl(38, 1, 'no_new_privs')
    call(446, 'landlock_restrict_self', descriptor, ctypes.c_uint32(0))
    os.close(descriptor)
    return version
"""


def definitions(kind: Kind) -> str:
    """Source of the functions that the statements below call."""
    return _KERNEL + (_NAMESPACES if kind == "namespaces" else _LANDLOCK)


def first_statements(kind: Kind, visible: list[str], scratch_bytes: int) -> str:
    """Source of the statements that a process runs before it changes its user."""
    if kind == "landlock":
        return f"kept = needed_to_read({visible!r})"
    return f"enter_namespaces({[*LIBRARIES, *visible]!r}, {list(DEVICES)!r}, {scratch_bytes}, {scratch_bytes})"


def last_statements(kind: Kind, visible: list[str], scratch: str) -> str:
    """Source of the statements that a process runs after its limits are set, right before the policy's code."""
    if kind == "namespaces":
        return "keep_capabilities(0)\nfiltered(outside=False, own_signals_only=False)"
    readable = [*LIBRARIES, *visible, "/dev/zero", "/dev/urandom", *PUBLIC]
    return (
        f"os.chdir({scratch!r})\nkeep_capabilities(kept)\n"
        f"version = restrict_files({readable!r}, [{scratch!r}, '/dev/null'])\n"
        "filtered(outside=True, own_signals_only=version < 6)"
    )
