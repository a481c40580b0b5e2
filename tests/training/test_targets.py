"""A run with a model of transformers, on the CPU and on a GPU."""

import pytest
import torch

from dflash_lab import analysis, training
from dflash_lab.training import replay_step


@pytest.fixture(scope="module")
def qwen3():
    import transformers

    from dflash_lab.target import TransformersTarget

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        # Large enough for the head to tell tokens apart.
        initializer_range=0.3,
    )
    return TransformersTarget(transformers.Qwen3ForCausalLM(config), target_layer_ids=(0, 1, 2))


def test_a_model_of_transformers_with_two_loops_and_a_resume(train, dataset, qwen3, assert_same, tmp_path):
    import signal

    whole = train(tmp_path / "whole", target=qwen3)
    loops = {"pipeline.num_target_loops": 2, "pipeline.num_workers": 3}

    def stop(metrics):
        if metrics.step == 5:
            signal.raise_signal(signal.SIGTERM)

    train(tmp_path / "run", target=qwen3, on_step=stop, **loops)
    result = train(tmp_path / "run", target=qwen3, **loops)
    assert_same(result.drafter.state_dict(), whole.drafter.state_dict())
    assert replay_step(tmp_path / "run", 9, dataset, qwen3, device="cpu").matches_log


@pytest.mark.gpu
def test_a_run_on_a_gpu(train, dataset, qwen3, tmp_path):
    result = train(tmp_path / "run", target=qwen3, device="cuda", epochs=8, **{"optimizer.learning_rate": 1e-2})
    assert result.complete
    assert {parameter.dtype for parameter in result.drafter.parameters()} == {torch.float32}
    assert {parameter.device.type for parameter in result.drafter.parameters()} == {"cuda"}
    table = analysis.read_run(tmp_path / "run")
    assert table["loss"].is_finite().all()
    assert table["loss"].tail(4).mean() < table["loss"].head(4).mean()


@pytest.mark.gpu
def test_a_gpu_and_a_cpu_begin_with_the_same_loss(train, qwen3, tmp_path):
    losses = []
    for device in ("cpu", "cuda"):
        train(tmp_path / device, target=qwen3, device=device, max_steps=3)
        losses.append(analysis.read_run(tmp_path / device)["loss"].to_list())
    # Products are in bfloat16 on the GPU.
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.gpu
def test_two_target_loops_on_a_gpu_and_a_resume_there(train, qwen3, tmp_path):
    import signal

    def stop(metrics):
        if metrics.step == 5:
            signal.raise_signal(signal.SIGTERM)

    settings = {"target_devices": ["cuda", "cuda"], "device": "cuda", "target": qwen3, "loss.kind": "kl"}
    train(tmp_path / "run", on_step=stop, **settings)
    result = train(tmp_path / "run", **settings)
    assert result.complete
    assert analysis.read_run(tmp_path / "run")["step"].to_list() == list(range(1, result.total_steps + 1))


@pytest.mark.gpu
def test_the_memory_of_the_heaviest_batches_on_a_gpu(tiny_run, dataset, qwen3):
    tried = training.try_heaviest_batches(tiny_run.make_config(), dataset, qwen3, device="cuda")
    for batch in tried:
        assert set(batch.peak_bytes) == {"cuda"} and batch.peak_bytes["cuda"] > 2**20
