"""Loss, logits and gradients against fixtures that agree with three public trainers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from dflash_lab.drafter import Documents, DraftBlocks, Drafter, DrafterConfig, block_position_weights, drafter_loss
from dflash_lab.drafter.attention import attend_dense, attend_grouped
from dflash_lab.drafter.merged_attention import attend_merged
from dflash_lab.drafter.metrics import accepted_prefix

FOLDER = Path(__file__).parent / "oracle"


def load(name):
    with np.load(FOLDER / f"{name}.npz") as held:
        values = {key: held[key] for key in held.files}
    settings = values.pop("cfg")
    settings = json.loads(settings.item() if settings.shape == () else bytes(settings).decode())
    return settings, {key: torch.from_numpy(np.asarray(value)) for key, value in values.items()}


def drafter_of(settings, values):
    taps = values["hidden"].shape[-1] // values["w/embed_tokens.weight"].shape[1]
    config = DrafterConfig(
        block_size=settings["block_size"],
        num_hidden_layers=settings["num_hidden_layers"],
        hidden_size=values["w/embed_tokens.weight"].shape[1],
        intermediate_size=values["w/layers.0.mlp.gate_proj.weight"].shape[0],
        num_attention_heads=values["w/layers.0.self_attn.q_proj.weight"].shape[0] // settings["head_dim"],
        num_key_value_heads=values["w/layers.0.self_attn.k_proj.weight"].shape[0] // settings["head_dim"],
        head_dim=settings["head_dim"],
        rms_norm_eps=settings["rms_norm_eps"],
        rope_theta=float(settings["rope_theta"]),
        vocab_size=settings["vocab_size"],
        mask_token_id=settings["mask_token_id"],
        target_layer_ids=tuple(range(taps)),
        num_target_layers=taps,
    )
    drafter = Drafter(config)
    weights = {key[2:]: value for key, value in values.items() if key.startswith("w/")}
    held = {name: weights[name] for name in drafter.state_dict()}
    drafter.load_state_dict(held)
    return drafter, weights


def blocks_of(settings, values):
    """Blocks by the definition: slot k of anchor a is token a + k, if it is in the sample and supervised."""
    size = settings["block_size"]
    found = []
    for sample, (anchors, valid) in enumerate(zip(values["anchors"], values["anchor_valid"], strict=True)):
        length = int(values["lengths"][sample])
        for place, anchor in enumerate(anchors.tolist()):
            if not valid[place]:
                continue
            ids, labels, scored = [settings["mask_token_id"]] * size, [0] * size, [False] * size
            ids[0] = int(values["ids"][sample, anchor])
            for slot in range(1, size):
                at = anchor + slot
                if at < length and values["loss_mask"][sample, at]:
                    labels[slot], scored[slot] = int(values["ids"][sample, at]), True
            found.append((sample, anchor, place, ids, labels, scored))
    found.sort(key=lambda block: block[:2])
    documents, anchors, places, ids, labels, scored = zip(*found, strict=True)
    blocks = DraftBlocks(
        documents=torch.tensor(documents),
        anchors=torch.tensor(anchors),
        input_ids=torch.tensor(ids),
        labels=torch.tensor(labels),
        scored=torch.tensor(scored),
    )
    return blocks, torch.tensor(documents), torch.tensor(places)


@pytest.mark.parametrize("attend", [attend_dense, attend_grouped, attend_merged])
@pytest.mark.parametrize("name", ["normal", "ragged", "short"])
def test_the_loss_and_all_its_parts(name, attend):
    settings, values = load(name)
    drafter, weights = drafter_of(settings, values)
    blocks, rows, places = blocks_of(settings, values)
    embeddings = functional.embedding(blocks.input_ids, weights["embed_tokens.weight"])
    documents = Documents.padded(values["lengths"].long())
    hidden = drafter(values["hidden"], embeddings, blocks, documents, attend=attend)

    def lm_head(states):
        return states @ weights["lm_head.weight"].T

    loss = drafter_loss(hidden, blocks, lm_head, gamma=settings["gamma"])
    (loss.loss_sum / loss.weight_sum).backward()
    close = dict(rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss.loss_sum.detach() / loss.weight_sum, values["out/loss"].float(), **close)
    torch.testing.assert_close(loss.loss_sum.detach(), values["out/loss_sum"].float(), **close)
    torch.testing.assert_close(loss.weight_sum, values["out/weight_sum"].float(), **close)
    assert loss.num_scored == int(values["out/count"])
    size = settings["block_size"]
    wanted = values["out/logits"].unflatten(1, (-1, size))[rows, places]
    torch.testing.assert_close(lm_head(hidden.detach()), wanted, **close)
    scored_ce = torch.where(blocks.scored, values["out/ce"][rows, places], 0.0)
    torch.testing.assert_close(loss.losses, scored_ce.float(), **close)
    torch.testing.assert_close(loss.weights, values["out/weight"][rows, places].float(), **close)
    assert torch.equal(torch.where(blocks.scored, blocks.labels, -1), values["out/labels"][rows, places].long())
    assert torch.equal(loss.correct.sum(0), values["out/pos_correct"].long())
    assert torch.equal(blocks.scored.sum(0), values["out/pos_count"].long())
    has_any = blocks.scored[:, 1:].any(1)
    streak = accepted_prefix(loss.correct[:, 1:], blocks.scored[:, 1:])[has_any].double().mean()
    assert float(streak) == pytest.approx(float(values["out/eal"]), abs=1e-4)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad, values[f"out/grad/{name}"].float(), **close)


def test_the_weights_are_those_of_gamma():
    weights = block_position_weights(16, 7.0)
    assert float(weights.sum()) == pytest.approx(6.630611, abs=1e-5)
    assert float(weights[8]) == pytest.approx(0.367879, abs=1e-6)
    assert float(weights[15]) == pytest.approx(0.135335, abs=1e-6)
