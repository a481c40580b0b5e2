"""What the README says is what happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_runs_as_printed(tmp_path):
    example, _ = EXAMPLES
    assert len([line for line in example.splitlines() if line]) <= 14
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.match(r"0\.\d+ 0\.\d+ \d+ \[", done.stdout)
    assert (tmp_path / "outputs" / "figures" / "strategies.png").is_file()


def test_the_pasted_line_says_what_the_text_says(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[1]], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for words in ("0.405 epochs are trained at 46,350 batches an epoch, 4 micro-batches a step", "4.6 days"):
        assert words in done.stdout


def test_links_lead_somewhere():
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "notebooks" / "README.md"):
        for target in re.findall(r"\]\(([^)]+)\)", file.read_text()):
            assert target.startswith("https://arxiv.org/") or (file.parent / target).exists(), f"{file}: {target}"


def test_the_notebooks_are_listed():
    listed = re.findall(r"\]\(notebooks/(\d\d_\w+\.ipynb)\)", README)
    assert listed == sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
