"""Training and evaluation from a config, with debuggers."""

from endoscope.runners.config.settings import Settings
from endoscope.runners.criterion import BaseCriterion, TorchCriterion
from endoscope.runners.loops.evaluator import BaseEvaluator
from endoscope.runners.loops.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.loops.trainer import BaseTrainer
from endoscope.runners.metric import BaseMetric
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runners.metrics.regression import RegressionMetric
from endoscope.runners.metrics.segmentation import SegmentationMetric
from endoscope.runs.scores import Scores, read_scores

__all__ = [
    "BaseCriterion",
    "BaseEvaluator",
    "BaseMetric",
    "BaseTrainer",
    "ClassificationMetric",
    "RegressionMetric",
    "Scores",
    "SegmentationMetric",
    "Settings",
    "SupervisedEvaluator",
    "SupervisedTrainer",
    "TorchCriterion",
    "read_scores",
]
