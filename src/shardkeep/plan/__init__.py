"""Pure decisions: who sends what to whom."""

from shardkeep.plan.messages import cut, fill
from shardkeep.plan.moves import Move, RankMoves, plan_moves

__all__ = ["Move", "RankMoves", "cut", "fill", "plan_moves"]
