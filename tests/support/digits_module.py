"""A small convolutional classifier of digits; this file is also the `model.py` of a model."""

import torch


class Digits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.filters = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.scores = torch.nn.Linear(512, 10)

    def forward(self, image):
        hidden = torch.relu(self.filters(image))
        return torch.softmax(self.scores(hidden.flatten(1)), 1)
