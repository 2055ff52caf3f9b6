// Maps each type of C++ error to a Python exception. Misuse (std::invalid_argument) is ValueError by
// nanobind's own rule.
#include "compress/codec.h"
#include "python/src/bindings.h"
#include "transport/messenger.h"

namespace gradwire::python {

namespace nb = nanobind;

void bind_errors(nb::module_& module) {
  static const nb::exception<compress::DecodeError> decode_error(module, "DecodeError", PyExc_ValueError);
  static const nb::exception<transport::TransportError> transport_error(module, "TransportError",
                                                                        PyExc_ConnectionError);
  static const nb::exception<transport::MembershipChanged> membership_changed(module, "MembershipChanged",
                                                                              transport_error.ptr());
  // Misuse, of the job: so it is both.
  static PyObject* const call_mismatch =
      PyErr_NewException("gradwire._core.CallMismatch",
                         nb::make_tuple(transport_error, nb::handle(PyExc_ValueError)).ptr(), nullptr);
  module.attr("CallMismatch") = nb::borrow(call_mismatch);
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* type) {
        try {
          std::rethrow_exception(error);
        } catch (const transport::CallMismatch& mismatch) {
          PyErr_SetString(static_cast<PyObject*>(type), mismatch.what());
        }
      },
      call_mismatch);
  static const nb::exception<transport::TimeoutError> timeout_error(module, "TimeoutError",
                                                                    PyExc_TimeoutError);
  nb::register_exception_translator(
      [](const std::exception_ptr& error, void* type) {
        try {
          std::rethrow_exception(error);
        } catch (const transport::FrameError& frame_error) {
          PyErr_SetString(static_cast<PyObject*>(type), frame_error.what());
        }
      },
      decode_error.ptr());
}

}  // namespace gradwire::python
