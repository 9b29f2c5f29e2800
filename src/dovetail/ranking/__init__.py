"""Which part to reuse for a task, before anything is trained.

``rank`` answers for parts, cut points and epochs; ``score`` for plain arrays; ``PairStatistics``
for rows that come in pieces; ``ntk_score`` for the kernel of a whole network.  ``judge`` says how
good a score is where the truth is known.
"""

from dovetail.ranking.expected import Expected, expected_accuracy
from dovetail.ranking.heads import Head, fit_head
from dovetail.ranking.judge import judge
from dovetail.ranking.judgement import Judgement
from dovetail.ranking.ntk import ntk_score, tangent_kernel
from dovetail.ranking.pair_sums import PairSums
from dovetail.ranking.ranker import rank, rank_over
from dovetail.ranking.records import Ranked, Ranking, RankingOver
from dovetail.ranking.scores import SCORES, Score, score
from dovetail.ranking.statistics import PairStatistics
from dovetail.ranking.task2vec import task_distance, task_embedding
from dovetail.ranking.task_map import TaskMap, task_map
from dovetail.ranking.winner import Bounds, beats, honest_intervals, honest_winner

__all__ = [
    "Bounds",
    "Expected",
    "Head",
    "Judgement",
    "PairStatistics",
    "PairSums",
    "Ranked",
    "Ranking",
    "RankingOver",
    "SCORES",
    "Score",
    "TaskMap",
    "beats",
    "expected_accuracy",
    "fit_head",
    "honest_intervals",
    "honest_winner",
    "judge",
    "ntk_score",
    "rank",
    "rank_over",
    "score",
    "tangent_kernel",
    "task_distance",
    "task_embedding",
    "task_map",
]
