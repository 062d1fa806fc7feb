"""From the URL of a board to a stream to its agent. A transport is chosen by who already authenticates: ssh, adb, the
process that starts a pipe, certificates, or who knows the address of a page."""

from __future__ import annotations

import hashlib
import importlib.util
import shlex
import shutil
import ssl
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from weft_remote.errors import LinkError
from weft_remote.streams import ProcessStream, Stream, TlsStream
from weft_runtime.errors import InputError, nearest, shown

NAMES = {
    "aarch64": "aarch64", "arm64": "aarch64", "arm": "arm", "armv7": "arm", "armv7l": "arm", "armv8l": "arm",
    "riscv64": "riscv64", "x86_64": "x86_64", "amd64": "x86_64",
}  # fmt: skip
"""What systems and people call an architecture → what agents for it and qemu's programs are called."""
FORMS = (
    "ssh://user@host[:port][/path/of/weft-run]",
    "adb:[serial]",
    "pipe:command",
    "qemu:architecture",
    "tls://host:port?ca=FILE&cert=FILE&key=FILE",
    "browser://",
)
_OPTIONS = {
    "ssh": {"agent", "store", "lock", "store-bytes"},
    "adb": {"agent", "store", "lock", "store-bytes"},
    "pipe": {"store", "lock", "store-bytes"},
    "qemu": {"agent", "store", "lock", "store-bytes", "cpu"},
    "tls": {"ca", "cert", "key"},
    "browser": {"open", "port", "wait"},
}


@dataclass(frozen=True)
class Place:
    """A parsed URL. `options` are those after its question mark."""

    url: str
    scheme: str
    host: str
    port: int | None
    path: str
    options: Mapping[str, str]

    def serve(self) -> list[str]:
        """What follows the name of the agent."""
        words = ["--serve"]
        for name in ("store", "lock", "store-bytes"):
            if name in self.options:
                words += [f"--{name}", self.options[name]]
        return words


def parse(url: str) -> Place:
    """
    Raises:
        InputError: it is no URL of a board.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _OPTIONS:
        close = nearest(scheme, _OPTIONS)
        raise InputError(
            f"'{shown(url, 200)}' is no board",
            why=f"a board is {', '.join(FORMS)}",
            hint=f"did you mean '{close}:…'?" if close else None,
        )
    body, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS[scheme]:
            known = ", ".join(sorted(_OPTIONS[scheme]))
            raise InputError(f"boards of '{scheme}:' have no option '{name}'", where=url, hint=f"known: {known}")
    if scheme == "browser" and body not in ("", "//"):
        raise InputError(
            f"'{shown(url, 200)}' is no board", why="a page is served here and nowhere else", hint=FORMS[5]
        )
    if scheme in ("pipe", "qemu", "adb", "browser"):
        return Place(url, scheme, "", None, unquote(body) if scheme == "adb" else body, options)
    try:
        parts = urlsplit(f"{scheme}:{body}")
        host, port = (parts.netloc.rpartition("@")[2] and parts.hostname) or "", parts.port
    except ValueError as error:
        raise InputError(f"'{shown(url, 200)}' is no board", why=str(error)) from None
    user = parts.username
    if not host or host.startswith("-") or (user or "").startswith("-") or parts.password is not None:
        why = "a password has no place in it: ssh asks for keys" if parts.password is not None else "it names no host"
        raise InputError(f"'{shown(url, 200)}' is no board", why=why, hint=FORMS[0] if scheme == "ssh" else FORMS[4])
    if scheme == "tls" and (port is None or not {"ca", "cert", "key"} <= options.keys()):
        raise InputError(f"'{shown(url, 200)}' is not complete", hint=FORMS[4])
    return Place(url, scheme, f"{user}@{host}" if user else host, port, unquote(parts.path), options)


def open_stream(url: str, timeout: float = 20.0) -> Stream:
    """A stream to an agent, which may still have to say its first word.

    Raises:
        InputError: the URL, or a file that it names, cannot be used.
        LinkError: there is no connection.
    """
    place = parse(url)
    return _TRANSPORTS[place.scheme](place, timeout)


# -- one each


def _pipe(place: Place, timeout: float) -> Stream:
    try:
        command = shlex.split(place.path)
    except ValueError as error:
        raise InputError(f"'{place.url}' names no command", why=str(error)) from None
    if not command:
        raise InputError(f"'{place.url}' names no command", hint='for example "pipe:weft-run"')
    return ProcessStream([*command, *place.serve()])


def _qemu(place: Place, timeout: float) -> Stream:
    name = NAMES.get(place.path)
    if name is None:
        raise InputError(f"there is no simulator of '{place.path}'", hint="known: " + ", ".join(NAMES))
    program = shutil.which(f"qemu-{name}") or shutil.which(f"qemu-{name}-static")
    if program is None:
        raise LinkError(f"qemu-{name} is not installed", hint="apt-get install qemu-user")
    agent = agent_for(name, place)
    cpu = ["-cpu", place.options["cpu"]] if "cpu" in place.options else []
    return ProcessStream([program, *cpu, str(agent), *place.serve()])


def _browser(place: Place, timeout: float) -> Stream:
    from weft_remote.pages import open_page

    return open_page(place.options, timeout)


def _tls(place: Place, timeout: float) -> Stream:
    assert place.port is not None
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=place.options["ca"])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(place.options["cert"], place.options["key"])
    except (OSError, ssl.SSLError) as error:
        raise InputError("a certificate or key cannot be read", where=place.url, why=str(error)) from None
    return TlsStream(place.host, place.port, context, timeout)


def _ssh(place: Place, timeout: float) -> Stream:
    ssh = shutil.which("ssh")
    if ssh is None:
        raise LinkError("ssh is not installed", hint="apt-get install openssh-client")
    alive = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
    login = [ssh, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(timeout))}", *alive]
    if place.port is not None:
        login += ["-p", str(place.port)]
    login += ["--", place.host]
    program = place.path.lstrip("/") if place.path.startswith("/~/") else place.path
    return _over_shell(place, program, lambda command: [*login, command], "$HOME/.cache/weft-run", timeout)


def _adb(place: Place, timeout: float) -> Stream:
    adb = shutil.which("adb")
    if adb is None:
        raise LinkError("adb is not installed", hint="apt-get install adb")
    if place.path.startswith("-"):
        raise InputError(f"'{place.url}' names no device", hint=FORMS[1])
    device = [adb, *(["-s", place.path] if place.path else []), "shell", "-T"]
    return _over_shell(place, "", lambda command: [*device, command], "/data/local/tmp", timeout)


_TRANSPORTS: Mapping[str, Callable[[Place, float], Stream]] = {
    "ssh": _ssh,
    "adb": _adb,
    "pipe": _pipe,
    "qemu": _qemu,
    "tls": _tls,
    "browser": _browser,
}


# -- agents that are brought along


def agent_for(architecture: str, place: Place) -> Path:
    """The program `weft-run` for a board: the file that the URL's `agent` names, or ARCHITECTURE/weft-run in that
    folder, where `python -m libweft.build FOLDER` writes it; without an `agent`, that of the package weft-libweft.

    Raises:
        InputError: there is none.
    """
    said = place.options.get("agent", "")
    if not said:
        hint = "pip install weft-libweft, or add ?agent=FILE, or the folder of python -m libweft.build"
        try:
            import weft_libweft

            return weft_libweft.prebuilt("weft-run", architecture)
        except (ImportError, FileNotFoundError) as error:
            raise InputError(
                f"no agent for {architecture} is named", where=place.url, why=str(error), hint=hint
            ) from error
    path = Path(said)
    found = path / architecture / "weft-run" if path.is_dir() else path
    if not found.is_file():
        raise InputError(
            f"there is no agent '{found}'", where=place.url, hint="python -m libweft.build FOLDER makes it"
        )
    return found


def _over_shell(
    place: Place, program: str, through: Callable[[str], Sequence[str]], folder: str, timeout: float
) -> Stream:
    """An agent that a shell on the board starts: `program`, if one is named. Otherwise the URL's `agent`, or that of
    the package weft-libweft, is stored there by its hash first; without both it is the board's own weft-run."""
    if "agent" not in place.options and (program or importlib.util.find_spec("weft_libweft") is None):
        return ProcessStream(through(shlex.join([program or "weft-run", *place.serve()])))
    machine = _ask(through("uname -m"), b"", timeout).strip()
    agent = agent_for(NAMES.get(machine, machine), place).read_bytes()
    digest = hashlib.sha256(agent).hexdigest()
    file = f'"{folder}/weft-run-{digest}"'
    run = f"exec {file} {shlex.join(place.serve())}"
    if _ask(through(f"test -x {file} && echo here || echo lacks"), b"", timeout).strip() != "here":
        part = f'"{folder}/weft-run-{digest}.$$"'
        # What is stored is compared where there is a program for it; a part that was cut short is never renamed.
        store = (
            f'mkdir -p "{folder}" && cat > {part} && test "$(wc -c < {part})" -eq {len(agent)} && '
            f"{{ ! command -v sha256sum > /dev/null || echo '{digest}  '{part} | sha256sum -c > /dev/null; }} && "
            f"chmod 755 {part} && mv {part} {file} && echo stored || {{ rm -f {part}; echo failed; }}"
        )
        if _ask(through(store), agent, timeout).strip() != "stored":
            raise LinkError("the agent could not be stored on the board", where=place.url, why="see its disk")
    return ProcessStream(through(run))


def _ask(command: Sequence[str], given: bytes, timeout: float) -> str:
    """What a command on the board prints.

    Raises:
        LinkError: it fails, or takes longer than three times `timeout`.
    """
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=3 * timeout, check=False)
    except subprocess.TimeoutExpired:
        raise LinkError("the board does not answer", why=f"{command[0]} took longer than {3 * timeout:g} s") from None
    except OSError as error:
        raise LinkError(f"'{command[0]}' cannot be started", why=error.strerror or str(error)) from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()[-1000:] or f"status {done.returncode}"
        raise LinkError("the board cannot be reached", why=why)
    return done.stdout.decode(errors="replace")
