"""Models: what turns text into tokens, tokens into logits, and ids back into bytes.

The map of the package, from the outside in:

* `interface`: what the engine asks of a model (`StepPlan`, `StepResult`, `Model`, `Tokenizer`, `TokenTable`,
  `ModelInfo`).
* `store`, `download`: where model files are and how they get there; `hub`, `hub_download`: those of a hub.
* `load`: one function per process and purpose, which imports no more than that purpose needs.
* `tensors`, `quants`: tensors as files hold them, and their dequantisation.
* `gguf`; `safetensors`, `json_object`: the readers of GGUF files, and of what a Hugging Face folder holds.
* `vocabulary`, `tokenizer`: the vocabulary in a GGUF file; `tokenizer_json`, `folder_tokenizer`: that of a
  Hugging Face folder; `chat` (with `_sandbox`): chat templates.
* `spelling`: which bytes a request's tokens add to its text.
* `decoder_config`, `weights`: what a decoder is, whatever its family and its file.
* `gguf_decoder`; `folder`, `folder_config`; `gather`, `rope`: decoders out of either kind of files.
* `decoder`, `paging`: the forward of every decoder over a paged KV pool.
* `device_decoder`, `accelerator`: the same on a device, such as CUDA, in steps that can be captured.
* `best`: the best token of each row of logits, for these two.
* `toy`, `toy_tokenizer`: a model for tests that notices every mistake in the block accounting.

Importing this package imports neither torch nor tokenizers nor jinja2.
"""

from vidette.models.download import pull as pull
from vidette.models.hub import HubName as HubName
from vidette.models.hub import parse_hub_name as parse_hub_name
from vidette.models.hub import pulled_models as pulled_models
from vidette.models.hub_download import Pulled as Pulled
from vidette.models.hub_download import pull_from_hub as pull_from_hub
from vidette.models.interface import BLOCK_SIZE as BLOCK_SIZE
from vidette.models.interface import Model as Model
from vidette.models.interface import ModelInfo as ModelInfo
from vidette.models.interface import StepPlan as StepPlan
from vidette.models.interface import StepResult as StepResult
from vidette.models.interface import Tokenizer as Tokenizer
from vidette.models.interface import TokenTable as TokenTable
from vidette.models.load import load_model as load_model
from vidette.models.load import load_token_table as load_token_table
from vidette.models.load import load_tokenizer as load_tokenizer
from vidette.models.load import read_info as read_info
from vidette.models.store import KNOWN_MODELS as KNOWN_MODELS
from vidette.models.store import KnownModel as KnownModel
from vidette.models.store import ModelSource as ModelSource
from vidette.models.store import WheelMember as WheelMember
from vidette.models.store import models_directory as models_directory
from vidette.models.store import resolve as resolve
