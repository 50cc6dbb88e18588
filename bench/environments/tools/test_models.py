"""Tests as a task of an agent would have them: a frame, a fit, a statistic."""

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score


def test_a_frame_is_grouped():
    frame = pd.DataFrame({"key": np.arange(300_000) % 7, "value": np.arange(300_000.0)})
    means = frame.groupby("key")["value"].mean()
    assert len(means) == 7
    assert (means - 149_999.5).abs().max() < 3


def test_a_forest_tells_cells_apart():
    features, labels = load_breast_cancer(return_X_y=True)
    forest = RandomForestClassifier(60, random_state=1)
    assert cross_val_score(forest, features, labels, cv=3).mean() > 0.93


def test_two_samples_differ():
    generator = np.random.default_rng(7)
    one, other = generator.normal(0, 1, 5000), generator.normal(0.2, 1, 5000)
    assert stats.ttest_ind(one, other).pvalue < 1e-6
