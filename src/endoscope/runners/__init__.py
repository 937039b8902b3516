"""Train and evaluate from a config, with debuggers looking on."""

from endoscope.runners.criterion import BaseCriterion, TorchCriterion
from endoscope.runners.evaluator import BaseEvaluator
from endoscope.runners.metric import BaseMetric
from endoscope.runners.metrics.classification import ClassificationMetric
from endoscope.runners.metrics.regression import RegressionMetric
from endoscope.runners.metrics.segmentation import SegmentationMetric
from endoscope.runners.settings import Settings
from endoscope.runners.supervised import SupervisedEvaluator, SupervisedTrainer
from endoscope.runners.trainer import BaseTrainer
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
