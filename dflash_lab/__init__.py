"""dflash_lab: a workbench for batching and training DFlash drafters.

A drafter is the small block-diffusion model that proposes tokens for a frozen target model to verify. How its training
samples are put into batches decides how much of a batch is padding, how often the same samples meet, and how evenly the
loss is mixed; this package plans those batches and turns plans and run logs into tables, figures and notebooks. A room
takes one value and gives one value. It knows the values it takes, not the rooms that made them, so data flows one way:

  samples -> lengths -> BatchPlan -> Batch -> TargetFeatures -> drafter step -> run log -> table -> figure -> notebook
  data                  batching     feed     target            drafter         training   analysis figures   notebooks

Importing the package imports no room: `from dflash_lab import data, batching` loads those two and no torch.
"""
