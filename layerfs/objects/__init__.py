"""The object database: kinds, ids, codecs, chunking, extents, trees, packs and frames."""
