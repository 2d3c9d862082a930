"""Functions that are never to blame: every kernel has them on top of such stacks."""

import re

_REPORTING = (
    r"__sanitizer|__asan|kasan|kcsan|__msan|kmsan|__tsan|ubsan|check_memory_region"
    r"|check_region_inline|check_heap_object|check_object|read_word_at_a_time"
    r"|(?:read|write)_once.*nocheck|print_address_description|print_report|print_usage_bug"
    r"|print_unlock|print_circular|panic|report_bug|fixup_bug|handle_bug|bug_handler|do_bug"
    r"|call_break|invalid_op|do_error|_trap$|do_trap|do_trap_break|brk_handler|debug_exception"
    r"|show_stack|show_regs|dump_stack|dump_backtrace|unwind_backtrace|walk_stackframe|__warn"
    r"|warn_slowpath|warn_alloc|warn_bogus|__do_kernel_fault|do_tag_check_fault|do_mem_abort"
    r"|^el1_(?:abort|da|ia|sync|dbg|brk)|^el1h_|debug_object|timer_is_static_object"
    r"|work_is_static_object|stack_trace_save|arch_stack_walk|save_stack|save_trace|set_track"
    r"|alloc_debug_processing|usercopy_(?:abort|warn)|assertfail|program_check"
)
_LOCKS = (
    r"lockdep|perf_trace|lock_(?:acquire|release|class|sock)|mark_(?:lock|usage)"
    r"|reacquire_held_locks|raw_spin_rq_lock|spin_(?:lock|trylock|unlock|dump|bug)"
    r"|raw_(?:read|write)_(?:lock|trylock)|_(?:read|write)_(?:lock|unlock)"
    r"|down_(?:read|write|trylock)|^up_(?:read|write)|^_*mutex_|^rt_mutex_|owner_on_cpu"
    r"|osq_(?:lock|unlock)|rwsem_|^(?:native_)?queued_|__lock_|__raw_|trace_hardirqs"
    r"|local_bh_(?:en|dis)able|seqcount_|__might_fault|^___might_sleep|^__might_resched"
)
_HELPERS = (
    r"atomic(?:64)?_(?:dec|inc|read|set|or|xor|and|add|sub|fetch|xchg|cmpxchg|try)"
    r"|(?:set|clear|change|test)_bit|^refcount_|^kref_|ref_tracker"
    r"|mem(?:set|cpy|cmp|scan|move|chr|dup)|^_*str(?:n?len|n?cmp|n?casecmp|[nl]?cpy|n?cat|r?chr|n?str)"
    r"|^strscpy|copy_(?:to|from)_(?:user|iter)|copyin|copyout|copy_user_|(?:put|get)_user"
    r"|__check_(?:heap_object|object_size)|list_(?:add|del|move|replace|splice)|^_*rb_"
    r"|^hex_string$|^string(?:_nocheck)?$|^pointer$|^number$|va_format|s[cn]*printf$|kv?asprintf"
    r"|printk|^_?dev_(?:info|err|warn|notice|crit|alert|emerg)$|^crc(?:7|8|16|32|64|_)"
    r"|__x86_indirect_thunk|logic_(?:in|out)|__raw_(?:read|write)[bwlq]"
)
_ALLOCATORS = (
    r"kmem_cache|[mzc]alloc|krealloc|^kv?free|slab_(?:alloc|free)|allocate_slab|alloc_pages"
    r"|free_pages|^__free_page"
)
# They act on what their callers hand in.
_SERVICES = (
    r"queue_(?:delayed_)?work|^_*flush_work$|cancel_(?:delayed_)?work|__wake_up|finish_wait"
    r"|^(?:do_)?wait_for_com|lock_timer_base|del_timer|timer_delete|mod_timer|^sk_stop_timer"
    r"|^usb_(?:kill|poison|unlink)_urb|kobject_(?:put|get|del|uevent|cleanup|release)|uevent"
    r"|^device_(?:add|del)$|^skb_(?:over_|under_)?panic|^kfree_skb|^consume_skb|^skb_release"
)

NEVER_TO_BLAME = re.compile("|".join((_REPORTING, _LOCKS, _HELPERS, _ALLOCATORS, _SERVICES)))
"""Searched in the name of a function."""
