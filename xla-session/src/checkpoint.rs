//! Weights on disk: safetensors, one file or shards with an index.
