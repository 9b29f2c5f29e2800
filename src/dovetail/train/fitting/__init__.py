"""The engine of compatibility: networks cut at a seam, shared heads, one objective, by turns."""
