"""The layers of a decoder, as plain torch modules.

Each leaf that holds weights says which tensors of the checkpoint it needs (`expected()`) and takes them (`load(read)`).
Nothing here knows of requests; what a step computes comes in as an `AttentionBatch`.
"""
