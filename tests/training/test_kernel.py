"""A run in a notebook's kernel: the stop button ends it politely."""

from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from dflash_lab.training.checkpoint import find_checkpoint

CODE = """
import importlib.util
from dflash_lab import training

spec = importlib.util.spec_from_file_location("tiny_run", {script!r})
tiny_run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny_run)
result = training.train_drafter(
    tiny_run.make_config(epochs=200, **{{"checkpoints.every_steps": None}}),
    tiny_run.make_dataset(),
    tiny_run.RandomTarget(),
    {run_dir!r},
    device="cpu",
    on_step=lambda metrics: print("step", metrics.step),
)
"""
AFTERWARDS = """
import signal, threading
print(result.stopped_by, result.state.step, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print([thread.name for thread in threading.enumerate() if thread.name.startswith("dflash")])
"""


@pytest.mark.slow
def test_the_stop_button_saves_and_the_kernel_lives_on(tmp_path):
    script = str(Path(__file__).with_name("tiny_run.py"))
    manager, client = start_new_kernel(kernel_name="python3")
    printed = []
    has_stopped = False

    def hear(message):
        nonlocal has_stopped
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])
            if not has_stopped and "step 3\n" in "".join(printed):
                has_stopped = True
                manager.interrupt_kernel()

    try:
        code = CODE.format(script=script, run_dir=str(tmp_path / "run"))
        reply = client.execute_interactive(code, output_hook=hear, timeout=120)
        assert reply["content"]["status"] == "ok", reply["content"]
        assert "stopped by SIGINT after step " in "".join(printed)
        printed.clear()
        client.execute_interactive(AFTERWARDS, output_hook=hear, timeout=60)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    step = find_checkpoint(tmp_path / "run").step
    assert step >= 3
    assert "".join(printed) == f"SIGINT {step} True\n[]\n"
