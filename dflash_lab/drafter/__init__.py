"""The model side of DFlash training: tensors in, tensors and sums out; knows no other room."""

from dflash_lab.drafter.anchors import AnchorBudget, draw_blocks, noisy_features, sample_anchors, valid_anchors
from dflash_lab.drafter.blocks import Documents, DraftBlocks
from dflash_lab.drafter.config import DrafterConfig, check_mask_token_id, default_target_layer_ids
from dflash_lab.drafter.decode import greedy_decode, speculative_decode
from dflash_lab.drafter.decode_speed import ForwardSeconds, measure_forward_seconds, predicted_speed_up
from dflash_lab.drafter.decoded import DecodedPrompt, mean_acceptance_length
from dflash_lab.drafter.export import DrafterExport, SpeculatorsVerifier, export_drafter, load_drafter, read_export
from dflash_lab.drafter.field_reader import ExportFinding
from dflash_lab.drafter.lint import lint_export
from dflash_lab.drafter.loss import BlockLoss, block_loss, block_position_weights, drafter_loss
from dflash_lab.drafter.metrics import BlockScores, accepted_prefix
from dflash_lab.drafter.model import DraftContext, Drafter
from dflash_lab.drafter.tree import DraftTree, draft_chain, draft_tree
from dflash_lab.drafter.tree_metrics import TreeMetrics, default_node_budgets, measure_trees

__all__ = [
    "AnchorBudget",
    "BlockLoss",
    "BlockScores",
    "DecodedPrompt",
    "Documents",
    "DraftBlocks",
    "DraftContext",
    "DraftTree",
    "Drafter",
    "DrafterConfig",
    "DrafterExport",
    "ExportFinding",
    "ForwardSeconds",
    "SpeculatorsVerifier",
    "TreeMetrics",
    "accepted_prefix",
    "block_loss",
    "block_position_weights",
    "check_mask_token_id",
    "default_node_budgets",
    "default_target_layer_ids",
    "draft_chain",
    "draft_tree",
    "drafter_loss",
    "draw_blocks",
    "export_drafter",
    "greedy_decode",
    "lint_export",
    "load_drafter",
    "mean_acceptance_length",
    "measure_forward_seconds",
    "measure_trees",
    "noisy_features",
    "predicted_speed_up",
    "read_export",
    "sample_anchors",
    "speculative_decode",
    "valid_anchors",
]
