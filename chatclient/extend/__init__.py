"""Names for authors of providers, stores and integrations."""

from typing import TYPE_CHECKING

from chatclient._internal.exports import lazy_exports

if TYPE_CHECKING:
    from chatclient._internal.checks import (
        check_callable as check_callable,
        check_choice as check_choice,
        check_method as check_method,
        check_model_name as check_model_name,
        check_moment as check_moment,
        check_number as check_number,
        check_type as check_type,
        checked_id as checked_id,
        seconds as seconds,
    )
    from chatclient._internal.closeable import (
        Closeable as Closeable,
    )
    from chatclient._internal.extras import (
        needed_by as needed_by,
    )
    from chatclient._internal.frozen import (
        EMPTY as EMPTY,
        FrozenDict as FrozenDict,
        freeze_fields as freeze_fields,
        frozen as frozen,
        merged as merged,
    )
    from chatclient._internal.json import (
        dumps as dumps,
        dumps_exact as dumps_exact,
        loads as loads,
        loads_exact as loads_exact,
    )
    from chatclient._internal.logging import (
        described as described,
        get_logger as get_logger,
    )
    from chatclient._internal.sqlite import (
        write_ahead as write_ahead,
    )
    from chatclient.chat.model import (
        BatchAnswers as BatchAnswers,
        BatchApi as BatchApi,
        BatchItem as BatchItem,
        SendItem as SendItem,
    )
    from chatclient.chat.options import (
        NO_OPTIONS as NO_OPTIONS,
        model_options as model_options,
    )
    from chatclient.chat.stored_values import (
        from_stored as from_stored,
        to_stored as to_stored,
    )
    from chatclient.chat.template import (
        require_placeholders as require_placeholders,
    )
    from chatclient.providers.http.auth import (
        Key as Key,
        key_source as key_source,
    )
    from chatclient.providers.http.client import (
        HttpAnswer as HttpAnswer,
        HttpClient as HttpClient,
    )
    from chatclient.providers.http.errors import (
        error_from_data as error_from_data,
        invalid_response as invalid_response,
        parse_json as parse_json,
        raise_for_error as raise_for_error,
        stream_ended_early as stream_ended_early,
    )
    from chatclient.providers.http.model import (
        HttpModel as HttpModel,
        HttpOptions as HttpOptions,
        HttpSettings as HttpSettings,
    )
    from chatclient.providers.http.reader import (
        EventReader as EventReader,
    )
    from chatclient.providers.http.request import (
        first_url as first_url,
        path_step as path_step,
    )
    from chatclient.providers.wire.common_options import (
        CommonOptions as CommonOptions,
        automatic as automatic,
        encode_effort as encode_effort,
        lacking as lacking,
    )
    from chatclient.providers.wire.fields import (
        MALFORMED as MALFORMED,
        arguments_object as arguments_object,
        dump_arguments as dump_arguments,
        int_field as int_field,
        other_fields as other_fields,
        text_field as text_field,
    )
    from chatclient.providers.wire.request_body import (
        RequestHead as RequestHead,
    )
    from chatclient.providers.wire.tools import (
        sendable_definitions as sendable_definitions,
    )
    from chatclient.runtime.blocking import (
        drive as drive,
    )
    from chatclient.runtime.runtime import (
        BLOCKING as BLOCKING,
        ON_LOOP as ON_LOOP,
        within_callers_deadline as within_callers_deadline,
    )
    from chatclient.runtime.threads import (
        ForkSafeLock as ForkSafeLock,
    )
else:  # not seen by type checkers, which would take any name for one that exists
    __getattr__, __dir__ = lazy_exports(__name__)
