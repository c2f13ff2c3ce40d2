"""The King James text from Debian's packages: unpacked in a folder of its own, one line when that is not possible."""

import json
import stat
from pathlib import Path

import pytest

from methods.common.errors import DataError
from tasks.prepare import fetch as fetching


def program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


BIBLE = """cat > "$3/usr/bin/bible" <<'EOF'
#!/bin/sh
echo 'Ge1:1 In the beginning.'
echo 'Ge1:2 And the earth.'
echo 'Ge2:1 Thus the heavens.'
EOF
chmod +x "$3/usr/bin/bible"
"""


def test_chapters_in_order_with_what_they_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "apt-get", 'shift 2; for name in "$@"; do echo "$name" > "${name}_1_all.deb"; done')
    program(tmp_path, "dpkg-deb", f'mkdir -p "$3/usr/bin" "$3/usr/lib"\n{BIBLE}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    record = fetching.fetch("kjv", tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out/kjv.jsonl").read_text().splitlines()]
    assert lines == [
        {"chapter": "Ge1", "text": "In the beginning. And the earth."},
        {"chapter": "Ge2", "text": "Thus the heavens."},
    ]
    assert record["chapters"] == 2
    assert set(record["packages"]) == {"bible-kjv_1_all.deb", "bible-kjv-text_1_all.deb"}
    assert json.loads((tmp_path / "out/source.yaml").read_text()) == record


def test_without_apt_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"come through apt-get, which is not here; run on Debian or Ubuntu"):
        fetching.fetch("kjv", tmp_path / "out")


def test_apts_failure_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "apt-get", "echo 'E: Unable to locate package bible-kjv' >&2; exit 100")
    program(tmp_path, "dpkg-deb", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(
        DataError, match=r"Unable to locate package bible-kjv.*run `apt-get update`"
    ) as caught:
        fetching.fetch("kjv", tmp_path / "out")
    assert "\n" not in str(caught.value)
