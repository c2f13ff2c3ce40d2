"""Whether the MLflow server that the settings name answers: MLflow itself would try again for minutes."""

import urllib.error
import urllib.request

from methods.common.errors import ConfigError

PATIENCE_SECONDS = 5


def check_tracking(uri: str | None) -> None:
    """Refuse a tracking server that does not answer; stores that are no web server are passed over.

    Raises:
        ConfigError: it is no address.
        OSError: nothing answers there.
    """
    if uri is None or not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=PATIENCE_SECONDS):
            return
    except urllib.error.HTTPError:
        return  # something answers; a login or another path is MLflow's to settle
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OSError(
            f"SEEDLOOM_MLFLOW_TRACKING_URI={uri} does not answer ({reason}); start that server, or unset the variable"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"SEEDLOOM_MLFLOW_TRACKING_URI={uri} is no address ({error}); give one such as http://127.0.0.1:5000"
        ) from None
