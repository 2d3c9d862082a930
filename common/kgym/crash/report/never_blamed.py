"""Functions that are never to blame: every kernel has them on top of such stacks.

The choice is that of syzkaller's pkg/report for Linux, so that titles agree with syzbot's.
"""

_REPORTING = (
    r"__sanitizer|__[am]san|k[am]san|hwasan|kcsan_setup_watchpoint|print_(?:address_desc|report)"
    r"|check_(?:memory_region|heap_object|object)|(?:read|write)_once_.*nocheck"
    r"|read_word_at_a_time|print_(?:usage_bug|unlock|tainted|hex_dump)|imbalance_bug|panic"
    r"|report_bug|fixup_bug|invalid_op|do_error|_trap$|do_trap|assertfail|__fortify_report"
    r"|(?:show|dump|walk)_stack|dump_backtrace|arch_stack_walk|stack_trace_(?:save|consume_entry)"
    r"|__warn|warn_(?:slowpath|alloc|bogus)|^get_taint$|debug_object|(?:timer|work)_is_static_object"
    r"|program_check_(?:exception|common)|_indirect_thunk_"
    # arm64's way into the oops
    r"|do_(?:kernel|translation)_fault|do_mem_abort|el1_abort|el1h_64_sync"
)
_LOCKS = (
    r"lockdep|perf_trace|lock_(?:acquire|release|class)|mark_lock|(?:reacquire|mark)_held_locks"
    r"|raw_spin_rq|spin_(?:lock|trylock|unlock)|(?:read|write)_(?:lock|trylock|unlock)"
    r"|^down$|down_(?:read|write|trylock)|up_(?:read|write)|^(?:__)?mutex_|^rt_mutex_|owner_on_cpu"
    r"|osq_(?:lock|unlock)|bh_(?:en|dis)able|(?:trace|lockdep)_(?:hard|soft)irq|seqprop_assert"
    r"|might_(?:fault|sleep)|__might_resched|^(?:un)?lock_page|cleanup_srcu_struct"
)
_HELPERS = (
    r"atomic(?:64)?_(?:dec|inc|read|set|or|xor|and|add|sub|fetch|xchg|cmpxchg|try)"
    r"|(?:set|clear|change|test)_bit|^refcount_|^kref_|ref_tracker"
    r"|mem(?:cpy|cmp|set|chr|move|dup)|strn?cmp|str[ln]?cpy|strscpy|strn?len|strn?str|strchr|strn?dup"
    r"|copy_(?:to|from)_user|copy_(?:(?:page|folio)_)?(?:to|from)_iter|^copy(?:in|out)$"
    r"|(?:put|get)_user|list_(?:add|del|replace|move|splice)|^(?:__)?rb_|^klist_|rhashtable_lookup"
    r"|xas_(?:start|load|find)|ida_free|string|pointer|sc?nprintf|kv?asprintf|va_format|printk"
    r"|hex_dump_to_buffer|dev_(?:info|notice|warn|err|alert|crit|emerg)|^crc\d+|crc_itu_t"
    r"|(?:read|write)[bwlq]$|logic_(?:in|out)|extract_(?:user|iter)_to_sg|__phys_addr"
)
_MEMORY = (
    r"alloc_page|k?v?[mzc]alloc|krealloc|kmem_cache|slab_|allocate_slab|^kv?free$"
    r"|__alloc_frozen_pages_noprof|folio_(?:alloc|unlock)|filemap_(?:alloc|get)_folio"
    r"|find_or_create_page|do_read_cache_folio|read_cache_page|pagecache_get_page"
    r"|grab_cache_page_write_begin|find_lock_entries|truncate_inode_pages_range"
)
# They only process what their callers pass.
_SERVICES = (
    r"del_timer|__mod_timer|lock_timer_base|__timer_delete_sync|sk_stop_timer_sync"
    r"|(?:flush|insert|queue)_work|__cancel_work_timer|cancel_work_sync|try_to_grab_pending"
    r"|(?:drain|destroy)_workqueue|queue_delayed_work|__wake_up|finish_wait|^complete$"
    r"|wait_for_completion|kthread_stop|kobject_|add_uevent_var|^put_device$|get_device_parent"
    r"|device_(?:add|del|unregister|destroy|release|for_each_child|remove_file)|devres_release_all"
    r"|sysfs_remove|hwrng_unregister|i2c_del_adapter|__unregister_client|tty_unregister_device"
    r"|rollback_registered|unregister_netdev|kfree_skb|dummy_urb_enqueue"
    r"|usb_(?:kill_urb|kill_anchored_urbs|control_msg|hcd_submit_urb|submit_urb)"
    r"|dput|^iput(?:_final)?$|^ihold$|drop_nlink"
)

# A pattern to be searched in a function's name.
NEVER_TO_BLAME = "|".join((_REPORTING, _LOCKS, _HELPERS, _MEMORY, _SERVICES))
