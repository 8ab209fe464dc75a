# `cmake --install build --component development`: headers, the C core's libraries, opq-opt, find_package(Opaque).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS opq_graph opq_fusion opq_codegen_llvm opq_codegen_c opq_runtime opq_opaque EXPORT OpaqueTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(TARGETS opq-opt COMPONENT development)
install(FILES include/opaque/opaque.h include/opaque/ops.def include/opaque/dtypes.def include/opaque/folds.def include/opaque/scalar.h
  include/opaque/scalar_math.h include/opaque/math_f32.def include/opaque/math_f64.def
  include/opaque/math_tables.h include/opaque/math_tables_f64.h include/opaque/kernel.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/opaque COMPONENT development)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Opaque)
install(EXPORT OpaqueTargets NAMESPACE Opaque:: DESTINATION ${config_folder} COMPONENT development)
configure_package_config_file(cmake/OpaqueConfig.cmake.in ${CMAKE_BINARY_DIR}/OpaqueConfig.cmake
  INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/OpaqueConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/OpaqueConfig.cmake ${CMAKE_BINARY_DIR}/OpaqueConfigVersion.cmake
  DESTINATION ${config_folder} COMPONENT development)
