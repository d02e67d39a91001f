/* The module's name begins each line. */
#ifndef MODULE_NAME
#define MODULE_NAME "KFI"
#endif

#define KFI_LOG(level, format, ...) \
	printk(level "%s: " format "\n", MODULE_NAME, ##__VA_ARGS__)

#define LOG_EMERG(...) KFI_LOG(KERN_EMERG, __VA_ARGS__)
#define LOG_ALERT(...) KFI_LOG(KERN_ALERT, __VA_ARGS__)
#define LOG_CRIT(...) KFI_LOG(KERN_CRIT, __VA_ARGS__)
#define LOG_ERR(...) KFI_LOG(KERN_ERR, __VA_ARGS__)
#define LOG_WARN(...) KFI_LOG(KERN_WARNING, __VA_ARGS__)
#define LOG_NOTICE(...) KFI_LOG(KERN_NOTICE, __VA_ARGS__)
#define LOG_INFO(...) KFI_LOG(KERN_INFO, __VA_ARGS__)
#define LOG_DEFAULT(...) KFI_LOG(KERN_DEFAULT, __VA_ARGS__)
#define LOG_DEBUG(...) KFI_LOG(KERN_DEBUG, __VA_ARGS__)
