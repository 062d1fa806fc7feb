"""Weft's frontends for scikit-learn, XGBoost, LightGBM and treelite."""
