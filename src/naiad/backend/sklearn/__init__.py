"""The sklearn backend: estimators and pipelines of scikit-learn, as their files hold them."""
