"""Named strategies: how the gradients of a training run travel, each a few lines with its source."""

from jaxnet.comm.strategies.averaging import Averaging as Averaging
from jaxnet.comm.strategies.averaging import Block as Block
from jaxnet.comm.strategies.named import STRATEGIES as STRATEGIES
from jaxnet.comm.strategies.named import has_bucket_size as has_bucket_size
from jaxnet.comm.strategies.named import named_strategy as named_strategy
from jaxnet.comm.strategies.named import settings_of as settings_of
from jaxnet.comm.strategies.named import takes_all_reduce as takes_all_reduce
from jaxnet.comm.strategies.strategy import Schedule as Schedule
from jaxnet.comm.strategies.strategy import Strategy as Strategy
from jaxnet.comm.strategies.strategy import scheduled as scheduled
