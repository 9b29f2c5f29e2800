"""What ``PairStatistics`` is made of: rows folded into sums, and scores read off from them."""
