"""Random metadata and filters, with which stores are compared."""

import math

from hypothesis import strategies as st

_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([1.5, math.inf, -math.inf]),
)
_conditions = st.one_of(
    _values,
    st.dictionaries(
        st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte", "contains"]), _values, min_size=1
    ),
    st.dictionaries(st.sampled_from(["in", "not_in"]), st.lists(_values, max_size=3), min_size=1),
    st.dictionaries(st.just("exists"), st.booleans(), min_size=1),
)
filters = st.recursive(
    st.dictionaries(st.sampled_from(["x", "y"]), _conditions, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=4,
)
_any_values = _values | st.sampled_from(["half \ud83d", math.nan, math.inf, -math.inf])
contents = st.dictionaries(
    st.sampled_from(["x", "y"]), st.one_of(_any_values, st.lists(_any_values, max_size=2))
)
