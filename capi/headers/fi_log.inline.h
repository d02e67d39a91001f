#define FI_LOG(prov, level, subsystem, ...) \
	do { \
		if (fi_log_enabled(prov, level, subsystem)) \
			fi_log(prov, level, subsystem, __func__, __LINE__, \
				__VA_ARGS__); \
	} while (0)

/* At most one line of each place per interval (FI_LOG_INTERVAL). */
#define FI_LOG_SPARSE(prov, level, subsystem, ...) \
	do { \
		static uint64_t fi_log_showtime_; \
		if (fi_log_ready(prov, level, subsystem, &fi_log_showtime_)) \
			fi_log(prov, level, subsystem, __func__, __LINE__, \
				__VA_ARGS__); \
	} while (0)

#define FI_WARN(prov, subsystem, ...) \
	FI_LOG(prov, FI_LOG_WARN, subsystem, __VA_ARGS__)

#define FI_WARN_SPARSE(prov, subsystem, ...) \
	FI_LOG_SPARSE(prov, FI_LOG_WARN, subsystem, __VA_ARGS__)

#define FI_WARN_ONCE(prov, subsystem, ...) \
	do { \
		static int fi_log_warned_; \
		if (!fi_log_warned_ && \
		    fi_log_enabled(prov, FI_LOG_WARN, subsystem)) { \
			fi_log(prov, FI_LOG_WARN, subsystem, __func__, \
				__LINE__, __VA_ARGS__); \
			fi_log_warned_ = 1; \
		} \
	} while (0)

#define FI_TRACE(prov, subsystem, ...) \
	FI_LOG(prov, FI_LOG_TRACE, subsystem, __VA_ARGS__)

#define FI_INFO(prov, subsystem, ...) \
	FI_LOG(prov, FI_LOG_INFO, subsystem, __VA_ARGS__)

/* Debug lines cost nothing unless the program is built with ENABLE_DEBUG. */
#if defined(ENABLE_DEBUG) && ENABLE_DEBUG
#define FI_DBG(prov_name, subsystem, ...) \
	FI_LOG(prov_name, FI_LOG_DEBUG, subsystem, __VA_ARGS__)
#define FI_DBG_TRACE(prov, subsystem, ...) \
	FI_LOG(prov, FI_LOG_TRACE, subsystem, __VA_ARGS__)
#else
#define FI_DBG(prov_name, subsystem, ...) do {} while (0)
#define FI_DBG_TRACE(prov, subsystem, ...) do {} while (0)
#endif
