"""The example image with users' managers: its Dockerfile, and that its settings load what it
copies.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from crawler_lifecycle.settings import Settings, unread_variables
from tests.support.crawler_image import ROOT, steps

FILE = ROOT / "images" / "user-code" / "Dockerfile"


def test_its_settings_are_ours_and_name_the_module_that_it_copies(tmp_path: Path) -> None:
    made = steps(FILE)
    env = dict(
        re.findall(r"([A-Z_]+)=('[^']*'|\S+)", next(rest for name, rest in made if name == "ENV"))
    )
    env = {name: value.strip("'") for name, value in env.items()}
    assert list(unread_variables(env)) == []
    [copy] = [rest.split() for name, rest in made if name == "COPY"]
    source, target = copy
    assert Path(target).parent == Path(env["LIFECYCLE_USER_CODE__FOLDER"])
    shutil.copy(ROOT / source, tmp_path / Path(target).name)
    user_code = Settings(
        user_code={"modules": json.loads(env["LIFECYCLE_USER_CODE__MODULES"]), "folder": tmp_path}
    ).user_code  # type: ignore[arg-type]
    assert [f"{module}.py" for module in user_code.modules] == [Path(target).name]
