#ifdef __cplusplus
/* So that the entry point of a plug-in written in C++ has its C name. */
struct fi_provider *fi_prov_ini(void);
#endif

static inline int
fi_param_get_str(struct fi_provider *provider, const char *param_name,
	char **value)
{
	return fi_param_get(provider, param_name, value);
}

static inline int
fi_param_get_int(struct fi_provider *provider, const char *param_name,
	int *value)
{
	return fi_param_get(provider, param_name, value);
}

static inline int
fi_param_get_bool(struct fi_provider *provider, const char *param_name,
	int *value)
{
	return fi_param_get(provider, param_name, value);
}

static inline int
fi_param_get_size_t(struct fi_provider *provider, const char *param_name,
	size_t *value)
{
	return fi_param_get(provider, param_name, value);
}
