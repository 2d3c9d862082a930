"""What a kernel's config has to have for a root disk."""

from kgym.api.steps import DISK_SYMBOLS
from kgym.bugs.config_symbols import refuse_without
from kgym.configs import CONFIGS
from tests.refused import refused


def test_the_shared_kernel_can_start_from_a_disk() -> None:
    refuse_without((CONFIGS / "kernels" / "linux-6.1.config").read_text(), DISK_SYMBOLS)


def test_what_is_lacking_is_named_with_what_it_is() -> None:
    config = "CONFIG_EXT4_FS=m\n# CONFIG_VIRTIO_BLK is not set\nCONFIG_DEVTMPFS=y\n"
    with refused("config_lacks") as error:
        refuse_without(config, ("DEVTMPFS", "EXT4_FS", "VIRTIO_BLK", "VIRTIO_PCI"))
    for words in ("EXT4_FS=y (it is m)", "VIRTIO_BLK=y (it is n)", "VIRTIO_PCI=y (it is n)"):
        assert words in error.value.message
    assert "DEVTMPFS" not in error.value.message
