/* The entry point of a plug-in: FI_EXT_INI { return &provider; } */
#define FI_EXT_INI \
	__attribute__((visibility ("default"), EXTERNALLY_VISIBLE)) \
	struct fi_provider* fi_prov_ini(void)
