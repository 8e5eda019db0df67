"""PyTorch: TorchScript, torch.export and AOTInductor archives, and `nn.Module` classes with weights."""
