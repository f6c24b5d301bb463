"""FBNN: functional variational BNNs (Sun, Zhang, Shi and Grosse 2019): SSGE with noise on the function values."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from fsvi_bench.methods.ssge import Ssge


class Fbnn(Ssge):
    """SSGE with the settings of FBNN's code for regression.

    Its measurement set is the minibatch and 5 uniform inputs. Here it is drawn independently of the minibatch, and half
    of it are training inputs. The default `kl_weight` is the paper's, 1; the code uses `N/B` with `minibatch` 20. With
    all rows, the default here, `N/B` is 1 too.
    """

    class Options(Ssge.Options):
        """SSGE's, with other defaults."""

        M: PositiveInt = 25
        minibatch: PositiveInt | Literal["full", "M"] = 20  # type: ignore[assignment]
        lr: PositiveFloat = 0.001
        injected_noise: NonNegativeFloat = 0.01
