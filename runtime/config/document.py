"""A YAML file as plain data with the place of every key: strict where YAML is lax."""

from __future__ import annotations

from pathlib import Path

import yaml

from baton.runtime.config.errors import ConfigError, Origin, Problem
from baton.runtime.config.scalars import plain_value

KeyPath = tuple[str | int, ...]
MAX_FILE_BYTES = 1 << 20
MAX_NODES = 20_000  # aliases are expanded: a limit keeps a small file from becoming a huge one


class Document:
    """`data`: the file's values. `keys`, `values`: where each key and each value begins. `problems`: what is
    wrong and does not keep the rest from being read."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.data: dict[str, object] = {}
        self.keys: dict[KeyPath, Origin] = {}
        self.values: dict[KeyPath, Origin] = {}
        self.problems: list[Problem] = []


def read_document(path: Path) -> Document:
    """Read a file; ConfigError for what is no readable YAML mapping."""
    try:
        raw = path.read_bytes() if path.stat().st_size <= MAX_FILE_BYTES else None
    except OSError as error:
        raise _error(Origin(str(path)), "", f"cannot be read: {error.strerror}") from None
    if raw is None:
        raise _error(Origin(str(path)), "", f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        return parse_document(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise _error(Origin(str(path)), "", f"is not UTF-8 text (byte {error.start})") from None


def parse_document(text: str, source: str) -> Document:
    """Parse YAML text; tags, merge keys and anything but one mapping are refused. Of a key given
    twice the first counts, and the second is a problem."""
    document = Document(source)
    try:
        # BaseLoader gives no meaning to words (`scalars` does) and makes no objects (nothing does).
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from None
    except yaml.reader.ReaderError as error:
        raise _error(
            Origin(source), "", f"has the character #x{error.character:x}, not allowed in YAML"
        ) from None
    if root is not None and not _is_null(root):
        builder = _Builder(document)
        if not isinstance(root, yaml.MappingNode):
            raise _error(builder.origin(root), "", "must hold `key: value` pairs at the top")
        document.data = builder.mapping(root, ())
    return document


class _Builder:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._open: list[yaml.Node] = []
        self._count = 0

    def origin(self, node: yaml.Node) -> Origin:
        return Origin(self._document.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error(self.origin(key_node), dotted(path), "a key must be a word")
            if key_node.value == "<<":
                raise _error(self.origin(key_node), dotted(path), "merge keys (<<) are not supported")
            name = normal_key(key_node.value)
            here = (*path, name)
            if name in result:
                said = f"duplicate key, given before at line {self._document.keys[here].line}"
                self._document.problems.append(Problem(self.origin(key_node), dotted(here), said))
                continue
            self._document.keys[here] = self.origin(key_node)
            result[name] = self.value(value_node, here)
        return result

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        self._document.values[path] = self.origin(node)
        self._count += 1
        if self._count > MAX_NODES or node in self._open:
            raise _error(self.origin(node), dotted(path), "too many values, or an alias inside itself")
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.rpartition(":")[2] not in {
            "str",
            "seq",
            "map",
        }:
            raise _error(self.origin(node), dotted(path), f"tags are not supported ({node.tag})")
        self._open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            return plain_value(node.value) if _is_plain(node) else node.value
        finally:
            self._open.pop()


def normal_key(key: str) -> str:
    """`max-running` and `max_running` are one key."""
    return key.replace("-", "_")


def dotted(path: KeyPath) -> str:
    """`router.port`, `transfer.kinds[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _is_null(node: yaml.Node) -> bool:
    return _is_plain(node) and plain_value(node.value) is None


def _is_plain(node: yaml.Node) -> bool:
    """Written without quotes or block marks."""
    return isinstance(node, yaml.ScalarNode) and node.style is None


def _error(origin: Origin, key: str, message: str) -> ConfigError:
    return ConfigError([Problem(origin, key, message)])


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return _error(Origin(source), "", f"is not YAML: {error}")
    origin = Origin(source, mark.line + 1, mark.column + 1)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line:
        return _error(origin, "", "has a tab; YAML is indented with spaces")
    return _error(origin, "", f"is not YAML: {error.problem or error.context}")
