"""The best bucket bounds there are, under two models of what a bucket costs.

Least padding and fewest batches are different goals. With the *bucket-edge* model every sample is padded to the longest
one of its bucket (`padding_cost`); with the *batch-longest* model a batch is padded to its own longest sample, drawn at
random from the bucket, and what counts is how many batches there are (`expected_batches`). Plans are built in the second
way; the first one is what users of fixed shapes pay.

Both optima are exact: over all ways to cut the distinct lengths into at most so many buckets, found by dynamic
programming over the place of the last bound. No other bound has to be looked at, since moving one through a gap between
two lengths changes no bucket.

The best bounds for few batches often lie at `token_budget // m + 1`, where the number m of samples that fit changes, but
not always: let 1,000 samples of 1 token, 50 of 100 and 450 of 128 share a budget of 128 tokens, 64 samples a batch, in
two buckets. The best cut is above 100 with 528.4 batches; the best of the points 128 // m + 1 (at 65) takes 515.6 ...
"""
