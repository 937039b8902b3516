"""Reading the folder of a run. Needs neither the model nor the user's code, and executes nothing from the folder."""

from endoscope.runs.find import FoundRuns, find_runs
from endoscope.runs.run import Epoch, Run, RunNotFoundError
from endoscope.runs.score_table import ScoreTable
from endoscope.runs.scores import Scores, read_scores

__all__ = ["Epoch", "FoundRuns", "Run", "RunNotFoundError", "ScoreTable", "Scores", "find_runs", "read_scores"]
