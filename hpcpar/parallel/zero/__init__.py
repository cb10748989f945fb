"""ZeRO: optimizer state (1), gradients (2) and parameters (3) of a stage cut over its data-parallel replicas (forms/zero.py).

microbatch    F  [gather a layer, 3]      B  [gather a layer, 3]  [reduce-scatter a bucket, 2 and 3]
step          [reduce-scatter a bucket, 1]  norm over shards  update of the own pieces  [gather the weights, 1 and 2]
"""
